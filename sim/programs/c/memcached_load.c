// Drives memcached, with one worker thread: memcached_load REQUESTS [KEYS]
#include "store.h"

static void put(unsigned key, const char *value, size_t size) {
    ASK("set key:%07u 0 0 %zu\r\n%.*s\r\n", key, size, (int)size, value);
    EXPECT("STORED\r\n");
}

static void get(unsigned key, const char *value, size_t size) {
    ASK("get key:%07u\r\n", key);
    if (size) EXPECT("VALUE key:%07u 0 %zu\r\n%.*s\r\n", key, size, (int)size, value);
    EXPECT("END\r\n");
}

int main(int argc, char **argv) {
    static const char socket[] = "/tmp/memcached.socket";
    program = "memcached_load";
    char *const command[] = {"memcached", "-s", (char *)socket, "-u", "root", "-t", "1", "-m", "256", NULL};
    pid_t server = start(socket, command);
    drive_from_arguments(&(struct protocol){"memcached", put, get}, argc, argv);
    kill(server, SIGTERM);
    end_well(server);
}
