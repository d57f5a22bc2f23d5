/* Every loop, and what stands around it. */
#include <stdio.h>
#pragma nvcp init(array, 3, 65536) mtbf(0.5)
static double table[3][4];
static void write_all(const double *values,
                      int count) {
  printf("%g %d\n", values[0], count);
}
int before; void loops(int n, double values[], float (*rows)[7]) {
  unsigned long i = 0, j;
  /* #pragma nvcp persistent(head) */
# pragma nvcp add_head(table, values[n], \
                       rows[n], i)
  #pragma nvcp restore(head);
  #pragma nvcp potential_persistent(head)
  for (j = 0; j < 10; i++, j++) {
    if (j == 5) continue;
  }
#pragma nvcp potential_persistent(head)
  for (;;) { if (i++ > 20) break; }
#pragma nvcp potential_persistent(head)
  // the main loop
  main_loop: while (i < 30) i++;
#pragma nvcp potential_persistent(head)
  do i++; while (i < 40);
  switch (n) {
  case 1:
    write_all(values,
              n);
    // as before
    #pragma nvcp persistent(head, write_all)
    break;
  }
}
