// Inputs whose numbers stand in a relation: sparse matrices in compressed rows, permutations. Follows tools.cu, whose `mix` it uses.
// Every element is made from its own place alone, as in `draw`: any number of threads makes the same, and a graph can repeat it.

__device__ u64 salted(u64 seed, const u64* salt) { return salt ? mix(seed ^ *salt) : seed; }

__device__ u64 read_word(const void* data, u64 i, u32 bytes) {
  return bytes == 1 ? ((const unsigned char*)data)[i] : bytes == 2 ? ((const unsigned short*)data)[i]
       : bytes == 4 ? ((const u32*)data)[i] : ((const u64*)data)[i];
}

__device__ void write_word(void* data, u64 i, u32 bytes, u64 value) {
  if (bytes == 1) ((unsigned char*)data)[i] = (unsigned char)value;
  else if (bytes == 2) ((unsigned short*)data)[i] = (unsigned short)value;
  else if (bytes == 4) ((u32*)data)[i] = (u32)value;
  else ((u64*)data)[i] = value;
}

// rows + 1 row offsets. The rows are halved again and again, and the entries of each half drawn: near its share while there are
// many rows, anything from none to all in the last steps, so that lengths differ as a product of two uniform numbers does. No
// row gets more than `width`.
extern "C" __global__ void draw_csr_offsets(void* out, u32 bytes, u64 rows, u64 entries, u64 width, u64 seed, const u64* salt) {
  seed = salted(seed, salt);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i <= rows; i += (u64)gridDim.x * blockDim.x) {
    u64 first = 0, count = rows, before = 0, left = entries;
    while (count > 1 && i < rows) {
      u64 half = count / 2, rest = count - half;
      double u = (double)(mix(mix(seed ^ first) + count * GOLDEN) >> 11) * 0x1.0p-53;
      double share = count > 4 ? (0.9 + 0.2 * u) * (double)half / (double)count : rest > half ? u * u : u;
      u64 full = left / width;  // so many rows hold what is left
      u64 part = (u64)((double)left * share), most = half > full ? left : half * width;
      u64 least = rest > full ? 0 : left - rest * width;
      part = part < least ? least : part > most ? most : part;
      if (i < first + half) { count = half; left = part; }
      else { first += half; before += part; left -= part; count = rest; }
    }
    write_word(out, i, bytes, i < rows ? before : entries);
  }
}

// The columns of each row, by a warp: one from each of as many equal parts of the width as the row has entries.
extern "C" __global__ void draw_csr_columns(void* out, u32 bytes, const void* offsets, u32 offset_bytes, u64 rows, u64 width,
                                            u64 seed, const u64* salt) {
  seed = salted(seed, salt);
  u64 warps = (u64)gridDim.x * blockDim.x / 32;
  for (u64 row = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    u64 begin = read_word(offsets, row, offset_bytes), length = read_word(offsets, row + 1, offset_bytes) - begin;
    u64 whole = length ? width / length : 0, over = length ? width % length : 0;
    for (u64 k = threadIdx.x & 31; k < length; k += 32) {
      u64 low = k * whole + k * over / length, high = (k + 1) * whole + (k + 1) * over / length;
      write_word(out, begin + k, bytes, low + mix(seed + (begin + k) * GOLDEN) % (high - low));
    }
  }
}

// 0 .. n - 1 in random order: a Feistel network permutes the next power of four, and what falls outside goes through it again.
extern "C" __global__ void draw_permutation(void* out, u32 bytes, u64 n, u64 seed, const u64* salt) {
  seed = salted(seed, salt);
  u32 half = 1;
  while (2 * half < 64 && (1ull << (2 * half)) < n) half++;
  u64 mask = (1ull << half) - 1;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
    u64 x = i;
    do {
      u64 left = x >> half, right = x & mask;
      for (u32 round = 1; round <= 8; round++) {
        u64 mixed = left ^ (mix(seed + right * GOLDEN + mix(round)) & mask);
        left = right;
        right = mixed;
      }
      x = left << half | right;
    } while (x >= n);
    write_word(out, i, bytes, x);
  }
}
