// Counts the instructions of mallocs and frees that a program marks, by single steps: no performance
// counter is needed. `step PROGRAM ARGUMENTS...` prints one JSON object.
//
// A mark is `int3`. At the first one rdi holds the address of the function that allocates and rsi of the one
// that frees; each further one precedes a call of one of them. The instructions from there on outside the
// program's own file are the call. Between two marks the program runs at full speed.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_CALLS = 1 << 16, ALLOCATES = 0, FREES = 1, KINDS = 2 };

struct Calls {
  unsigned counts[MOST_CALLS];
  unsigned number;
};

static struct Calls calls[KINDS];

static void fail(const char *what) {
  fprintf(stderr, "step: %s: %s\n", what, strerror(errno));
  exit(1);
}

// The address range of the program's own code.
static void own_code(pid_t program, unsigned long *first, unsigned long *end) {
  char path[64], own[4096], line[8192];
  snprintf(path, sizeof path, "/proc/%d/exe", program);
  ssize_t length = readlink(path, own, sizeof own - 1);
  if (length < 0) fail(path);
  own[length] = 0;
  snprintf(path, sizeof path, "/proc/%d/maps", program);
  FILE *maps = fopen(path, "r");
  if (!maps) fail(path);
  while (fgets(line, sizeof line, maps))
    if (strstr(line, own) && strstr(line, "r-xp") && sscanf(line, "%lx-%lx", first, end) == 2) {
      fclose(maps);
      return;
    }
  fprintf(stderr, "step: %s: no code of %s\n", path, own);
  exit(1);
}

// Runs until the next int3, or for one step; passes on signals for the program. Whether it still runs.
static int advance(pid_t program, enum __ptrace_request how, struct user_regs_struct *now) {
  int status, signal = 0;
  for (;;) {
    if (ptrace(how, program, NULL, (void *)(long)signal)) fail("ptrace");
    if (waitpid(program, &status, 0) < 0) fail("waitpid");
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return 0;
    if (!WIFSTOPPED(status)) {
      fprintf(stderr, "step: the program failed (status %x)\n", status);
      exit(1);
    }
    signal = WSTOPSIG(status);
    if (signal == SIGTRAP) break;
  }
  if (ptrace(PTRACE_GETREGS, program, NULL, now)) fail("ptrace");
  return 1;
}

static int compare(const void *a, const void *b) {
  unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
  return x < y ? -1 : x > y;
}

static void print(const char *name, struct Calls *of, const char *end) {
  unsigned long long sum = 0;
  for (unsigned n = 0; n < of->number; ++n) sum += of->counts[n];
  qsort(of->counts, of->number, sizeof *of->counts, compare);
  printf("\"%s.calls\":%u,\"%s.median\":%u,\"%s.mean\":%.2f,\"%s.p99\":%u%s", name, of->number, name,
         of->counts[of->number / 2], name, (double)sum / of->number, name,
         of->counts[(unsigned long)of->number * 99 / 100], end);
}

int main(int count, char **arguments) {
  if (count < 2) {
    fprintf(stderr, "step: PROGRAM ARGUMENTS... is missing\n");
    return 2;
  }
  const char *preload = getenv("STEP_PRELOAD");
  pid_t program = fork();
  if (program < 0) fail("fork");
  if (!program) {
    if (preload) setenv("LD_PRELOAD", preload, 1);
    personality(ADDR_NO_RANDOMIZE);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    execv(arguments[1], arguments + 1);
    _exit(127);
  }
  int status;
  if (waitpid(program, &status, 0) < 0 || !WIFSTOPPED(status)) {
    fprintf(stderr, "step: %s: cannot be run\n", arguments[1]);
    return 1;
  }
  // If this process dies, the kernel kills the program, too.
  ptrace(PTRACE_SETOPTIONS, program, NULL, (void *)PTRACE_O_EXITKILL);
  struct user_regs_struct now;
  unsigned long entries[KINDS] = {0, 0}, first = 0, end = 0;
  if (advance(program, PTRACE_CONT, &now)) {
    entries[ALLOCATES] = now.rdi, entries[FREES] = now.rsi;
    own_code(program, &first, &end);
  }
  while (advance(program, PTRACE_CONT, &now)) {
    unsigned *counting = NULL;
    for (;;) {
      if (!advance(program, PTRACE_SINGLESTEP, &now)) {
        fprintf(stderr, "step: the program ended in a call\n");
        return 1;
      }
      int own = now.rip >= first && now.rip < end;
      if (own && counting) break;
      if (own) continue;
      if (!counting) {
        int kind = now.rip == entries[ALLOCATES] ? ALLOCATES : now.rip == entries[FREES] ? FREES : KINDS;
        if (kind == KINDS || calls[kind].number == MOST_CALLS) {
          fprintf(stderr, "step: a call of %lx, which is neither of the two\n", (unsigned long)now.rip);
          return 1;
        }
        counting = &calls[kind].counts[calls[kind].number++];
      }
      ++*counting;
    }
  }
  if (!calls[ALLOCATES].number || !calls[FREES].number) {
    fprintf(stderr, "step: no call of both was marked\n");
    return 1;
  }
  printf("{");
  print("malloc", &calls[ALLOCATES], ",");
  print("free", &calls[FREES], "}\n");
  return 0;
}
