// Frames of every kind that compilers make, each around a call of `look`.
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#define FUNCTION __attribute__((noinline, noclone))
typedef void (*Look)(void *);
static volatile int after;

FUNCTION void plain(Look look, void *argument) {
  volatile char room[200];
  room[0] = 1;
  look(argument);
  after = room[0];
}

FUNCTION static void down(Look look, void *argument, int frames) {
  if (frames > 0)
    down(look, argument, frames - 1);
  else
    look(argument);
  after = frames;
}
FUNCTION void deep(Look look, void *argument) { down(look, argument, 30); after = 0; }

FUNCTION static void moved(Look look, void *argument, int bytes) {
  volatile char *room = alloca(bytes);
  room[bytes - 1] = 1;
  look(argument);
  after = room[bytes - 1];
}
FUNCTION void sized_at_run_time(Look look, void *argument) {
  for (int bytes = 16; bytes < 5000; bytes *= 3) moved(look, argument, bytes);
  after = 0;
}

FUNCTION static void many(Look look, void *argument, long c, long d, long e, long f, long g, long h, long i) {
  look(argument);
  after = c + d + e + f + g + h + i;
}
FUNCTION void many_arguments(Look look, void *argument) {
  many(look, argument, 1, 2, 3, 4, 5, 6, after);
  after = 0;
}

FUNCTION void aligned(Look look, void *argument) {
  _Alignas(64) volatile char room[64];
  room[0] = 1;
  look(argument);
  after = room[0];
}

static Look look_later;
static void *look_argument;
static int compare(const void *a, const void *b) {
  look_later(look_argument);
  after = 0;
  return *(const int *)a - *(const int *)b;
}
FUNCTION void called_by_a_library(Look look, void *argument) {
  int two[2] = {2, 1};
  look_later = look, look_argument = argument;
  qsort(two, 2, sizeof *two, compare);
  after = two[0];
}

static void on_signal(int number) {
  look_later(look_argument);
  after = number;
}
FUNCTION void signalled(Look look, void *argument) {
  look_later = look, look_argument = argument;
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  after = 0;
}

static void *in_thread(void *nothing) {
  plain(look_later, look_argument);
  return nothing;
}
FUNCTION void threaded(Look look, void *argument) {
  pthread_t thread;
  look_later = look, look_argument = argument;
  pthread_create(&thread, 0, in_thread, 0);
  pthread_join(thread, 0);
}

static ucontext_t here, there;
static void in_fiber(void) { plain(look_later, look_argument); }
FUNCTION void in_a_fiber(Look look, void *argument) {
  char *stack = malloc(1 << 18);
  look_later = look, look_argument = argument;
  getcontext(&there);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = 1 << 18;
  there.uc_link = &here;
  makecontext(&there, in_fiber, 0);
  swapcontext(&here, &there);
  free(stack);
}
