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

FUNCTION void plain(Look look, void *told) {
  volatile char room[200];
  room[0] = 1;
  look(told);
  after = room[0];
}

FUNCTION static void down(Look look, void *told, int frames) {
  if (frames > 0)
    down(look, told, frames - 1);
  else
    look(told);
  after = frames;
}
FUNCTION void deep(Look look, void *told) { down(look, told, 30); after = 0; }

FUNCTION static void moved(Look look, void *told, int bytes) {
  volatile char *room = alloca(bytes);
  room[bytes - 1] = 1;
  look(told);
  after = room[bytes - 1];
}
FUNCTION void sized_at_run_time(Look look, void *told) {
  for (int bytes = 16; bytes < 5000; bytes *= 3) moved(look, told, bytes);
  after = 0;
}

FUNCTION static void many(Look look, void *told, long c, long d, long e, long f, long g, long h, long i) {
  look(told);
  after = c + d + e + f + g + h + i;
}
FUNCTION void many_arguments(Look look, void *told) {
  many(look, told, 1, 2, 3, 4, 5, 6, after);
  after = 0;
}

FUNCTION void aligned(Look look, void *told) {
  _Alignas(64) volatile char room[64];
  room[0] = 1;
  look(told);
  after = room[0];
}

static Look whose;
static void *what;
static int compare(const void *a, const void *b) {
  whose(what);
  after = 0;
  return *(const int *)a - *(const int *)b;
}
FUNCTION void called_by_a_library(Look look, void *told) {
  int two[2] = {2, 1};
  whose = look, what = told;
  qsort(two, 2, sizeof *two, compare);
  after = two[0];
}

static void on_signal(int number) {
  whose(what);
  after = number;
}
FUNCTION void signalled(Look look, void *told) {
  whose = look, what = told;
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  after = 0;
}

static void *in_thread(void *nothing) {
  plain(whose, what);
  return nothing;
}
FUNCTION void threaded(Look look, void *told) {
  pthread_t thread;
  whose = look, what = told;
  pthread_create(&thread, 0, in_thread, 0);
  pthread_join(thread, 0);
}

static ucontext_t here, there;
static void in_fiber(void) { plain(whose, what); }
FUNCTION void in_a_fiber(Look look, void *told) {
  char *stack = malloc(1 << 18);
  whose = look, what = told;
  getcontext(&there);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = 1 << 18;
  there.uc_link = &here;
  makecontext(&there, in_fiber, 0);
  swapcontext(&here, &there);
  free(stack);
}
