// A socket of AF_XDP, whose packets the kernel writes to memory that it has pinned: in a network namespace of its own
// (`unshare --net`), on a pair of veth devices that the runner has made, `near` and `far`. What arrives is there
// after each call of advise. Prints "skip: REASON" where the kernel lacks something.
// variants: started by the runner
#include "merge_test.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { PAGES = 2048, FIRST = 600, FRAMES = 64, MARK = 60 };

static void skip(const char *why) {
    printf("skip: %s: %s\n", why, strerror(errno));
    exit(0);
}

static unsigned char *at;
static int receiver, sender;

struct ring {
    _Atomic uint32_t *producer, *consumer;
    void *entries;
};

static struct ring map_ring(const struct xdp_ring_offset *offsets, size_t entry, off_t which) {
    char *start = mmap(NULL, offsets->desc + FRAMES * entry, PROT_READ | PROT_WRITE, MAP_SHARED, receiver, which);
    CHECK(start != MAP_FAILED, "%m");
    return (struct ring){(void *)(start + offsets->producer), (void *)(start + offsets->consumer), start + offsets->desc};
}

static int bpf(int command, union bpf_attr *about) { return syscall(SYS_bpf, command, about, sizeof *about); }

// Sends every packet of the device to the socket.
static void redirect(int device) {
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1};
    int sockets = bpf(BPF_MAP_CREATE, &map);
    if (sockets < 0) skip("BPF_MAP_TYPE_XSKMAP");
    uint32_t key = 0, value = receiver;
    union bpf_attr element = {.map_fd = sockets, .key = (uintptr_t)&key, .value = (uintptr_t)&value};
    if (bpf(BPF_MAP_UPDATE_ELEM, &element)) skip("the socket in a map");
    struct bpf_insn program[] = {
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets},
        {0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP,
                           .insn_cnt = sizeof program / sizeof *program,
                           .insns = (uintptr_t)program,
                           .license = (uintptr_t) "Dual MIT/GPL"};
    int loaded = bpf(BPF_PROG_LOAD, &load);
    if (loaded < 0) skip("a program of XDP");
    union bpf_attr link = {.link_create = {
                               .prog_fd = loaded, .target_ifindex = device, .attach_type = BPF_XDP, .flags = XDP_FLAGS_SKB_MODE}};
    if (bpf(BPF_LINK_CREATE, &link) < 0) skip("a program on the device");
}

static void open_receiver(void) {
    receiver = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (receiver < 0) skip("AF_XDP");
    struct xdp_umem_reg memory = {.addr = (uintptr_t)at + FIRST * PAGE, .len = FRAMES * PAGE, .chunk_size = PAGE};
    if (setsockopt(receiver, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory)) skip("memory for AF_XDP");
    int frames = FRAMES;
    for (int option = XDP_RX_RING; option <= XDP_UMEM_COMPLETION_RING; option++)
        if (option != XDP_TX_RING && option != XDP_UMEM_REG)
            CHECK(!setsockopt(receiver, SOL_XDP, option, &frames, sizeof frames), "%m");
}

static void send_frame(int number) {
    unsigned char frame[1000] = {[12] = 0x88, [13] = 0xb5};
    memset(frame, 0xff, 6);
    memset(frame + MARK, number, sizeof frame - MARK);
    CHECK(send(sender, frame, sizeof frame, 0) == sizeof frame, "%m");
}

static void must_advise(void) { CHECK(!mayfly_advise(at, PAGES * PAGE, 0), "%m: %s", mayfly_merge_error()); }

int main(int count, char **words) {
    bool is_advised_before = count > 1 && !strcmp(words[1], "after");
    alarm(60);
    at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%m");
    for (size_t p = 0; p < PAGES; p++) fill(at + p * PAGE, PAGE, 1000 + p);
    if (is_advised_before) must_advise();
    open_receiver();
    if (!is_advised_before) must_advise();
    struct xdp_mmap_offsets offsets;
    socklen_t length = sizeof offsets;
    CHECK(!getsockopt(receiver, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length), "%m");
    struct ring fillers = map_ring(&offsets.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
    struct ring arrived = map_ring(&offsets.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
    int device = if_nametoindex("far");
    if (!device) skip("no pair of veth devices");
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP, .sxdp_ifindex = device, .sxdp_flags = XDP_COPY};
    if (bind(receiver, (struct sockaddr *)&address, sizeof address)) skip("AF_XDP on veth");
    redirect(device);
    sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll from = {.sll_family = AF_PACKET, .sll_protocol = htons(0x88b5), .sll_ifindex = if_nametoindex("near")};
    if (sender < 0 || bind(sender, (struct sockaddr *)&from, sizeof from)) skip("AF_PACKET");
    for (int n = 0; n < FRAMES; n++) {
        ((uint64_t *)fillers.entries)[n % FRAMES] = (uint64_t)n * PAGE;
        atomic_store(fillers.producer, n + 1);
        if (n % 8 == 7) must_advise();
        send_frame(n + 1);
        struct pollfd wait = {receiver, POLLIN, 0};
        // Other packets do not arrive: the runner has silenced both devices.
        CHECK(poll(&wait, 1, 20000) == 1, "packet %d has not arrived", n);
        struct xdp_desc *packet = (struct xdp_desc *)arrived.entries + atomic_load(arrived.consumer) % FRAMES;
        unsigned char *data = at + FIRST * PAGE + packet->addr;
        CHECK(packet->len == 1000, "a packet of %u bytes", packet->len);
        for (size_t i = MARK; i < packet->len; i++)
            CHECK(data[i] == n + 1, "packet %d, byte %zu: %d: what the kernel wrote is lost", n, i, data[i]);
        atomic_fetch_add(arrived.consumer, 1);
    }
    for (size_t p = 0; p < PAGES; p++)
        if (p < FIRST || p >= FIRST + FRAMES) expect(at + p * PAGE, PAGE, 1000 + p, "around the socket's memory");
    struct mayfly_merge_stats stats;
    CHECK(!mayfly_merge_stats(&stats, sizeof stats), "%m");
    CHECK(stats.inserted_pages >= PAGES - FRAMES, "only %llu pages are shared", (unsigned long long)stats.inserted_pages);
    return 0;
}
