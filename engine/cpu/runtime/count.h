// Counts accesses as the memory system of a GPU would see them: by warp, place in the code and visit.
#pragma once
#include <cstddef>
#include <cstdio>

void count_access(const void *pc, int array, size_t offset, size_t bytes, int write, bool atomic);
void count_block();         // the block that was counted has ended
void count_launch_block();  // one more block runs, counted or not
void count_launch_end();
void count_report(FILE *out);
