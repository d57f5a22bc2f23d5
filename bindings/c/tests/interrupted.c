// Linked with a program, it interrupts each of its calls: a signal every millisecond, and calls of the system that end early.

#define _XOPEN_SOURCE 700
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>

static void nothing(int number) { (void)number; }

__attribute__((constructor)) static void interrupt(void) {
  struct sigaction action = {0};
  const struct itimerval every = {{0, 1000}, {0, 1000}};
  // Without SA_RESTART.
  action.sa_handler = nothing;
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &every, NULL);
}
