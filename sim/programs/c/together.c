// Starts several programs at once, which take turns on one core (§6.6), waits for all, and prints the output of each, in
// their order: together [NAME=VALUE ...] PROGRAM [ARGUMENT ...] , [NAME=VALUE ...] PROGRAM ...
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16 };

static int output_of(int number, int flags) {
    char path[32];
    snprintf(path, sizeof path, "/tmp/together.%d", number);
    return open(path, flags, 0644);
}

static pid_t start(int number, char **words) {
    pid_t child = fork();
    if (child != 0) return child;
    unsetenv("LD_PRELOAD");
    for (; *words && strchr(*words, '='); words++) putenv(*words);
    dup2(output_of(number, O_WRONLY | O_CREAT | O_TRUNC), 1);
    if (*words) execvp(*words, words);
    perror(*words ? *words : "together: no program");
    _exit(127);
}

int main(int argc, char **argv) {
    pid_t children[MOST];
    int many = 0;
    for (int at = 1; at < argc; at++) {
        char **words = argv + at;
        while (at < argc && strcmp(argv[at], ",") != 0) at++;
        argv[at] = NULL;
        if (many == MOST) return fprintf(stderr, "together: at most %d programs\n", MOST), 2;
        children[many] = start(many, words);
        many++;
    }
    int wrong = 0;
    for (int i = 0; i < many; i++) {
        int status;
        wrong |= waitpid(children[i], &status, 0) != children[i] || status != 0;
        static char text[4096];
        int file = output_of(i, O_RDONLY);
        for (ssize_t got; (got = read(file, text, sizeof text)) > 0;) wrong |= write(1, text, (size_t)got) != got;
        close(file);
    }
    return wrong;
}
