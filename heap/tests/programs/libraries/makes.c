// library
// A library that makes and frees objects of its own; deep_binding.c opens it.
#include <stdlib.h>
#include <string.h>

char *made(size_t size) { return memset(malloc(size), 7, size); }
char *copy(const char *text) { return strdup(text); }
void give_back(void *object) { free(object); }
