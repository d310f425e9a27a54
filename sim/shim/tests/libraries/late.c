// A library that looks at an object of its own when the program ends, after all that the program does then.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *kept;

__attribute__((constructor)) static void begin(void) { kept = strcpy(malloc(6), "there"); }

__attribute__((destructor)) static void end(void) {
    if (strcmp(kept, "there") != 0) _exit(9);
    free(kept);
}
