// library
// copies: 40
// A library that takes 128 bytes of the static TLS block: forty copies of it use up glibc's reserve.
__attribute__((tls_model("initial-exec"))) __thread char taken[128] = {1};
char *address_of_taken(void) { return taken; }
