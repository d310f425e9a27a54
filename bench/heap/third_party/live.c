// Preloaded beside an allocator: reports on a FIFO the live bytes that the allocator counts in this process.
//
// LIVE_BYTES_FIFO names two FIFOs, PATH.ask and PATH.answer. A thread sleeps in open() until a client
// asks. It allocates nothing, so the process's own allocations stay the same. "-1" means that the
// allocator cannot count.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char ask[512], answer[512];

// The symbol, if it belongs to malloc's library: glibc's mallinfo2 does not count another heap.
static void *of_allocator(const char *name) {
  Dl_info mallocs, found;
  void *symbol = dlsym(RTLD_DEFAULT, name);
  if (!symbol || !dladdr(dlsym(RTLD_DEFAULT, "malloc"), &mallocs) || !dladdr(symbol, &found)) return NULL;
  return strcmp(mallocs.dli_fname, found.dli_fname) ? NULL : symbol;
}

static long long live_bytes(void) {
  int (*control)(const char *, void *, size_t *, void *, size_t) = of_allocator("mallctl");
  if (control) {
    unsigned long long epoch = 1;
    size_t length = sizeof epoch, bytes = 0, bytes_length = sizeof bytes;
    control("epoch", &epoch, &length, &epoch, sizeof epoch);
    return control("stats.allocated", &bytes, &bytes_length, NULL, 0) ? -1 : (long long)bytes;
  }
  int (*property)(const char *, size_t *) = of_allocator("MallocExtension_GetNumericProperty");
  if (property) {
    size_t bytes = 0;
    return property("generic.current_allocated_bytes", &bytes) ? (long long)bytes : -1;
  }
  struct mallinfo2 (*info)(void) = of_allocator("mallinfo2");
  if (info) {
    struct mallinfo2 now = info();
    // Objects with their own mapping are counted separately.
    return (long long)(now.uordblks + now.hblkhd);
  }
  return -1;
}

static void *serve(void *nothing) {
  (void)nothing;
  for (;;) {
    int fd = open(ask, O_RDONLY);
    if (fd < 0) return NULL;
    close(fd);
    char text[32];
    int length = snprintf(text, sizeof text, "%lld\n", live_bytes());
    fd = open(answer, O_WRONLY);
    if (fd < 0) return NULL;
    if (write(fd, text, length) != length) return NULL;
    close(fd);
  }
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("LIVE_BYTES_FIFO");
  if (!path) return;
  snprintf(ask, sizeof ask, "%s.ask", path);
  snprintf(answer, sizeof answer, "%s.answer", path);
  // For this process only: its children must not answer.
  unsetenv("LIVE_BYTES_FIFO");
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  pthread_t thread;
  if (!pthread_create(&thread, &small, serve, NULL)) pthread_detach(thread);
  pthread_attr_destroy(&small);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
