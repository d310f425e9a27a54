// The verilated units, each clocked alone, and the services that their ports ask for. A difference from the
// record is thrown as a text. Answers of memory take none to three cycles, so that no state depends on one
// delay.
#pragma once

#include <map>
#include <memory>

#include "Vobject_allocator.h"
#include "Vobject_allocator___024root.h"
#include "Vpage_allocator.h"
#include "Vpage_allocator___024root.h"
#include "memory.h"

inline std::string hex(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%#llx", (unsigned long long)value);
    return text;
}

inline void same(const std::string &what, uint64_t model, uint64_t hardware) {
    if (model != hardware) throw what + ": the model has " + hex(model) + ", the hardware " + hex(hardware);
}

template <typename Unit> void clock(Unit &unit) {
    unit.clk = 0;
    unit.eval();
    unit.clk = 1;
    unit.eval();
}

class Delay {
  public:
    // Whether a request that has come is answered now.
    bool over() {
        if (left < 0) left = (state = state * 1103515245 + 12345) >> 16 & 3;
        return left-- == 0;
    }

  private:
    uint32_t state = 1;
    int left = -1;
};

// Events of both units, for the summary.
using Counts = std::map<std::string, uint64_t>;

class PageAllocator {
  public:
    explicit PageAllocator(Counts &counts) : counts(counts) {
        rtl.reset = 1;
        clock(rtl);
        rtl.reset = 0;
    }

    // An arena, whose first page the model knows. Returns false if it is refused.
    bool allocate(const Record &record, unsigned size_class, uint64_t page, Memory &memory,
                  uint64_t &address) {
        memory.begin_block(record.block, record.region, record.lane);
        rtl.core = record.core % 32;
        rtl.block = record.block >> PAGE_SHIFT;
        rtl.size_class = size_class;
        run(memory, page, false);
        address = uint64_t(rtl.arena) << PAGE_SHIFT;
        if (rtl.refusal != HIT) same("the page allocator's refusal", REGION_FULL, rtl.refusal);
        else same("the arena's first page", page, uint64_t(rtl.arena_page) << PAGE_SHIFT);
        return rtl.refusal == HIT;
    }

    void forget(uint64_t block, Memory &memory) {
        rtl.block = block >> PAGE_SHIFT;
        run(memory, 0, true);
        memory.forget_block(block);
    }

    // An entry's pointers, the latest first.
    std::vector<uint64_t> entry(uint64_t core) const {
        std::vector<uint64_t> found;
        for (int slot = 0; slot < 7; slot++) {
            int which = core % 32;
            if (!(field(rtl.rootp->page_allocator__DOT__aac__DOT__valid, which * 7 + slot, 1))) continue;
            const auto &row = rtl.rootp->page_allocator__DOT__aac__DOT__entries[which];
            uint64_t block = field(row, slot * 70 + 42, 28) << PAGE_SHIFT;
            found.push_back(Memory::pointer_address(block, field(row, slot * 70 + 36, 6)));
        }
        return found;
    }

    uint64_t misses = 0, evictions = 0;

  private:
    Vpage_allocator rtl;
    Counts &counts;
    Delay delay;

    void run(Memory &memory, uint64_t page, bool forget) {
        rtl.start = 1;
        rtl.forget = forget;
        clock(rtl);
        rtl.start = 0;
        for (int cycles = 1; !rtl.done; cycles++) {
            if (cycles > 1000) throw std::string("the page allocator does not answer");
            rtl.memory_done = rtl.memory_request && delay.over();
            if (rtl.memory_done) {
                uint64_t block = uint64_t(rtl.memory_block) << PAGE_SHIFT;
                uint64_t pointer = Memory::pointer_address(block, rtl.memory_class);
                if (!memory.pointers.count(pointer)) throw "no bump pointer is at " + hex(pointer);
                uint64_t &value = memory.pointers[pointer];
                if (rtl.memory_write) value = uint64_t(rtl.memory_pointer) << PAGE_SHIFT;
                rtl.pointer_read = value >> PAGE_SHIFT;
                (rtl.memory_write ? evictions : misses)++;
                counts[rtl.memory_write ? "aac_evictions" : "aac_misses"]++;
            }
            rtl.pool_done = rtl.pool_take && delay.over();
            rtl.pool_page = page >> PAGE_SHIFT;
            clock(rtl);
        }
        counts["aac_look_ups"] += !forget;
    }
};

class ObjectAllocator {
  public:
    ObjectAllocator(Counts &counts, bool eager) : counts(counts) {
        rtl.eager = eager;
        rtl.reset = 1;
        clock(rtl);
        rtl.reset = 0;
        clock(rtl);
    }

    // Executes the record's operation, and compares all that it asks for on the way and its answer.
    void execute(const Record &record, Memory &memory, PageAllocator &pages) {
        rtl.region = record.region >> CLASS_SHIFT + 11;
        rtl.lane = record.lane;
        rtl.block = record.block >> PAGE_SHIFT;
        rtl.operation = record.operation;
        rtl.operand = record.operand;
        rtl.start = 1;
        clock(rtl);
        rtl.start = 0;
        unsigned accesses = 0, arenas = 0, frees = 0;
        int cycles = 1, answered = rtl.done ? 1 : 0;
        if (answered) answer(record);
        while (!answered || rtl.busy) {
            if (cycles > 100000) throw std::string("the object allocator does not answer");
            serve_memory(record, memory, accesses);
            rtl.translate_done = rtl.translate;
            rtl.translation = record.translation >> PAGE_SHIFT;
            if (rtl.translate) {
                uint64_t page = record.operand >> PAGE_SHIFT;
                if (rtl.translate_page > page || page - rtl.translate_page > 32)
                    throw "it translates " + hex(uint64_t(rtl.translate_page) << PAGE_SHIFT);
                counts["translations"]++;
            }
            serve_arenas(record, memory, pages, arenas, frees);
            clock(rtl);
            cycles++;
            if (rtl.done) {
                if (answered) throw std::string("it answers twice");
                answered = cycles;
                answer(record);
            }
        }
        same("accesses to memory", record.accesses.size(), accesses);
        same("arenas asked for", record.arenas.size(), arenas);
        same("arenas returned", record.freed != 0, frees);
        bool instruction = record.operation <= TOUCH;
        if (instruction && record.outcome == HIT) same("a hit's cycles", 2, answered);
        counts["cycles"] += cycles;
    }

    void compare(const Row &row) const {
        const auto *inside = rtl.rootp;
        bool valid = inside->object_allocator__DOT__hot__DOT__valid_rows >> row.size_class & 1;
        std::string core = " of core " + std::to_string(row.core) + ": ";
        std::string what = "row " + std::to_string(row.size_class) + core;
        same(what + "valid", row.valid, valid);
        if (!valid) return;
        const auto &bits = inside->object_allocator__DOT__hot__DOT__rows[row.size_class];
        same(what + "dirty", row.dirty, field(bits, 387, 1));
        same(what + "page", row.page, field(bits, 359, 28) << PAGE_SHIFT);
        same(what + "available list", row.available, field(bits, 331, 28) << PAGE_SHIFT);
        same(what + "full list", row.full, field(bits, 303, 28) << PAGE_SHIFT);
        compare(what, row.header, header_of(bits, 0));
    }

    static void compare(const std::string &what, const Header &model, const Header &hardware) {
        same(what + "arena", model.arena, hardware.arena);
        for (int word = 0; word < 4; word++)
            same(what + "bitmap's word " + std::to_string(word), model.bitmap[word], hardware.bitmap[word]);
        same(what + "bypass counter", model.bypass, hardware.bypass);
    }

  private:
    Vobject_allocator rtl;
    Counts &counts;
    Delay delay;

    void answer(const Record &record) {
        if (record.outcome != ANY) {
            same("the outcome", record.outcome, rtl.outcome);
            counts["outcome_" + std::to_string(rtl.outcome)]++;
        }
        bool allocates = record.operation == ALLOCATE && record.outcome <= MISS;
        if (allocates) same("the address", record.address, rtl.address);
        if (record.operation == TOUCH && record.is_new != 2) {
            same("the line is new", record.is_new, rtl.is_new);
            counts["new_lines"] += rtl.is_new;
        }
    }

    void serve_memory(const Record &record, Memory &memory, unsigned &accesses) {
        enum { READ_HEADER, WRITE_HEADER, WRITE_PREV, WRITE_NEXT, READ_LISTS, WRITE_LISTS };
        rtl.memory_done = rtl.memory_request && delay.over();
        if (!rtl.memory_done) return;
        uint64_t address = uint64_t(rtl.memory_page) << PAGE_SHIFT;
        int operation = rtl.memory_operation;
        bool of_lists = operation >= READ_LISTS;
        if (of_lists) address = Memory::lists_address(address, rtl.memory_class);
        bool writes = operation != READ_HEADER && operation != READ_LISTS;
        std::string number = "access " + std::to_string(accesses);
        if (accesses == record.accesses.size())
            throw number + ", to " + hex(address) + ", is not the model's";
        same(number, record.accesses[accesses++], address | writes);
        Lists &lists = memory.lists[of_lists ? address : 0];
        Header &header = memory.headers[of_lists ? 0 : address];
        Header written = whole_header_of(rtl.memory_header);
        switch (operation) {
        case READ_HEADER: set_header(rtl.header_read, header); break;
        case WRITE_HEADER: header = written; break;
        case WRITE_PREV: header.prev = written.prev; break;
        case WRITE_NEXT: header.next = written.next; break;
        case READ_LISTS:
            set_field(rtl.lists_read, 56, 28, lists.current >> PAGE_SHIFT);
            set_field(rtl.lists_read, 28, 28, lists.available >> PAGE_SHIFT);
            set_field(rtl.lists_read, 0, 28, lists.full >> PAGE_SHIFT);
            break;
        case WRITE_LISTS:
            lists.current = field(rtl.memory_lists, 56, 28) << PAGE_SHIFT;
            lists.available = field(rtl.memory_lists, 28, 28) << PAGE_SHIFT;
            lists.full = field(rtl.memory_lists, 0, 28) << PAGE_SHIFT;
            break;
        default: throw "an unknown access, " + std::to_string(operation);
        }
        static const char *const names[] = {"header_reads", "header_writes", "link_writes",
                                            "link_writes",  "lists_reads",   "lists_writes"};
        counts[names[operation]]++;
    }

    void serve_arenas(const Record &record, Memory &memory, PageAllocator &pages, unsigned &arenas,
                      unsigned &frees) {
        rtl.arena_done = rtl.arena_new || rtl.arena_free;
        rtl.arena_refusal = HIT;
        if (rtl.arena_free) {
            same("the arena returned", record.freed, uint64_t(rtl.arena_freed) << PAGE_SHIFT);
            frees++;
            counts["arenas_returned"]++;
        }
        if (!rtl.arena_new) return;
        if (arenas == record.arenas.size()) throw std::string("it asks for an arena, the model does not");
        const NewArena &expected = record.arenas[arenas++];
        same("the class of the arena asked for", expected.size_class, rtl.arena_class);
        uint64_t address = 0;
        bool given = pages.allocate(record, rtl.arena_class, expected.page, memory, address);
        same("the arena is refused", expected.refused, !given);
        if (given) same("the new arena's address", expected.address, address);
        rtl.arena_refusal = given ? HIT : REGION_FULL;
        rtl.arena_address = address >> PAGE_SHIFT;
        rtl.arena_page = expected.page >> PAGE_SHIFT;
        counts[given ? "arenas" : "arenas_refused"]++;
    }
};
