// A wrong free of the kind that the argument names; the shim must stop the program.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    void *volatile objects[600];
    for (int i = 0; i < 600; i++) objects[i] = malloc(48);
    void *volatile object = objects[0];
    if (!strcmp(kind, "double")) {
        free(object);
        free(object);
    } else if (!strcmp(kind, "inside")) {
        free((char *)object + 16);
    } else if (!strcmp(kind, "header")) {
        free((void *)((uintptr_t)object & ~(uintptr_t)4095));
    } else if (!strcmp(kind, "unused")) {
        free((char *)object + 16 * 16384);
    } else if (!strcmp(kind, "gone")) {
        for (int i = 0; i < 256; i++) free(objects[i]);
        free(object);
    }
    puts("not noticed");
}
