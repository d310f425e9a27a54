// What the units keep in memory: headers, list heads and bump pointers; and the packed fields of their ports.
#pragma once

#include <unordered_map>

#include "record.h"

constexpr int PAGE_SHIFT = 12, CLASS_SHIFT = 26;

// `width` bits of a port or of a memory's row, which Verilator keeps in words of 32 bits.
template <typename Wide> uint64_t field(const Wide &wide, int low, int width) {
    uint64_t value = 0;
    for (int bit = 0; bit < width; bit++)
        value |= uint64_t(wide[(low + bit) / 32] >> (low + bit) % 32 & 1) << bit;
    return value;
}

template <typename Wide> void set_field(Wide &wide, int low, int width, uint64_t value) {
    for (int bit = 0; bit < width; bit++) {
        uint32_t mask = 1u << (low + bit) % 32;
        uint32_t &word = wide[(low + bit) / 32];
        word = value >> bit & 1 ? word | mask : word & ~mask;
    }
}

// Arena, bitmap and bypass counter stand in this order in header_t and in entry_t.
template <typename Wide> Header header_of(const Wide &wide, int low) {
    Header header;
    header.bypass = field(wide, low, 11);
    for (int word = 0; word < 4; word++) header.bitmap[word] = field(wide, low + 11 + 64 * word, 64);
    header.arena = field(wide, low + 267, 36) << PAGE_SHIFT;
    return header;
}

template <typename Wide> Header whole_header_of(const Wide &wide) {
    Header header = header_of(wide, 56);
    header.prev = field(wide, 28, 28) << PAGE_SHIFT;
    header.next = field(wide, 0, 28) << PAGE_SHIFT;
    return header;
}

template <typename Wide> void set_header(Wide &wide, const Header &header) {
    set_field(wide, 0, 28, header.next >> PAGE_SHIFT);
    set_field(wide, 28, 28, header.prev >> PAGE_SHIFT);
    set_field(wide, 56, 11, header.bypass);
    for (int word = 0; word < 4; word++) set_field(wide, 67 + 64 * word, 64, header.bitmap[word]);
    set_field(wide, 323, 36, header.arena >> PAGE_SHIFT);
}

struct Lists {
    uint64_t current = 0, available = 0, full = 0;
};

class Memory {
  public:
    std::unordered_map<uint64_t, Header> headers;  // by physical address
    std::unordered_map<uint64_t, Lists> lists;
    std::unordered_map<uint64_t, uint64_t> pointers;

    static uint64_t lists_address(uint64_t block, unsigned size_class) { return block + 24 * size_class; }
    static uint64_t pointer_address(uint64_t block, unsigned size_class) {
        return block + 2048 + 8 * size_class;
    }

    // A thread's block, before its first arena: each class's pointer is where its arenas begin.
    void begin_block(uint64_t block, uint64_t region, uint64_t lane) {
        for (unsigned size_class = 0; size_class < 64; size_class++) {
            uint64_t range = region + (((lane << 6) + size_class) << CLASS_SHIFT);
            uint64_t start = range + (size_class / 2 << PAGE_SHIFT);
            pointers.try_emplace(pointer_address(block, size_class), start);
        }
    }

    void forget_block(uint64_t block) {
        for (unsigned size_class = 0; size_class < 64; size_class++) {
            pointers.erase(pointer_address(block, size_class));
            lists.erase(lists_address(block, size_class));
        }
    }
};
