// Switching between stacks: own assembly where we have it, ucontext elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void optiml_switch(void **save, void *load);

struct Context {
    void *sp = nullptr;
};

inline void context_switch(Context &from, Context &to) { optiml_switch(&from.sp, to.sp); }

inline void context_make(Context &context, char *stack, size_t bytes, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
    auto *frame = reinterpret_cast<void **>(top);
#if defined(__x86_64__)
    frame -= 2;  // entry is "called": the stack is 8 off a multiple of 16 when it starts
    frame[0] = reinterpret_cast<void *>(entry);
    frame[1] = nullptr;
    frame -= 6;
    for (int i = 0; i < 6; ++i) frame[i] = nullptr;
#else
    frame -= 20;
    for (int i = 0; i < 20; ++i) frame[i] = nullptr;
    frame[11] = reinterpret_cast<void *>(entry);  // x30
#endif
    context.sp = frame;
}
#else
#include <ucontext.h>

struct Context {
    ucontext_t context;
};

inline void context_switch(Context &from, Context &to) { swapcontext(&from.context, &to.context); }

inline void context_make(Context &context, char *stack, size_t bytes, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}
#endif
