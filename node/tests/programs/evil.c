// A container's program that attacks the page store that it can reach: many connections, nonsense, half messages, its lock,
// writes into mounted folders. Prints each attack of the last two kinds that succeeds; none may.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char *SOCKET = "/opt/mayfly/store/share.socket";

static int reach(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, SOCKET, sizeof name.sun_path - 1);
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    if (file >= 0 && connect(file, (void *)&name, sizeof name) < 0) {
        close(file);
        return -1;
    }
    return file;
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 1, reached = 0, refused = 0;
    const char *paths[] = {"/opt/mayfly/x", "/opt/mayfly/store/x", "/opt/mayfly/heap/x", "/opt/mayfly/share/x"};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++)
        if (open(paths[i], O_CREAT | O_WRONLY, 0666) >= 0) printf("wrote %s\n", paths[i]);
    if (!unlink(SOCKET)) printf("unlinked %s\n", SOCKET);
    // A process that can open the lock can take it once the store ends, and then the next store cannot start.
    if (open("/opt/mayfly/store/share.lock", O_RDONLY) >= 0) printf("opened the store's lock\n");
    char noise[32768];
    for (unsigned i = 0; i < sizeof noise; i++) noise[i] = rand();
    for (int round = 0; round < rounds; round++) {
        int files[900], n = 0;
        for (int i = 0; i < 900; i++) {
            int file = reach();
            if (file < 0) {
                refused++;
                continue;
            }
            reached++;
            files[n++] = file;
            unsigned hello[2] = {1, 1}, offer[2] = {3, 0xffffffff};
            send(file, hello, sizeof hello, MSG_NOSIGNAL);
            send(file, i % 3 ? (void *)noise : (void *)offer, i % 3 ? 1 + rand() % (sizeof noise - 1) : sizeof offer, MSG_NOSIGNAL);
        }
        while (n) close(files[--n]);
    }
    printf("connected %d times, %d refused\n", reached, refused);
    return 0;
}
