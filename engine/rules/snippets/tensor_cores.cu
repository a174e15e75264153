//: tf32
// Adds the product of 16 x 8 and 8 x 8 elements that a warp's threads hold to 16 x 8 sums; factors count with the 10 bits of TF32.
__device__ __forceinline__ void $product(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A number as the sum of two that TF32 holds.
__device__ __forceinline__ void $split(float number, unsigned& high, unsigned& low) {
    high = (__float_as_uint(number) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(number - __uint_as_float(high));
}
//: pairs
// Adds the product of 16 x 16 and 16 x 8 elements that a warp's threads hold, two in a register, to 16 x 8 sums.
__device__ __forceinline__ void $product(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.$kind.$kind.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two elements in a register, the first in its lower half.
__device__ __forceinline__ unsigned $pair($element first, $element second) {
    return $as_ushort(first) | static_cast<unsigned>($as_ushort(second)) << 16;
}
