// Records of memento-lockstep (sim/memento/src/bin/memento-lockstep/record.rs), read from standard input.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

enum Operation { ALLOCATE, FREE, TOUCH, FLUSH, INITIALISE, DISCARD, FORGET, BEGIN };
enum Outcome { HIT, MISS, REGION_FULL = 3, NON_LOCAL = 8, ANY = 15 };

struct Header {
    uint64_t arena = 0;
    std::array<uint64_t, 4> bitmap{};
    uint64_t bypass = 0, prev = 0, next = 0;
};

struct Row {
    uint64_t core, size_class, valid, dirty, page, available, full;
    Header header;
};

struct NewArena {
    uint64_t size_class, refused, address, page;
};

struct Record {
    uint64_t operation, core, operand, region, lane, block, outcome, address, is_new, translation, freed;
    uint64_t aac_misses, aac_evictions;
    std::vector<uint64_t> accesses;
    std::vector<NewArena> arenas;
    std::vector<Row> rows;
    std::vector<std::pair<uint64_t, Header>> headers;
    std::vector<std::pair<uint64_t, std::vector<uint64_t>>> pointers;
};

class Reader {
  public:
    // False at the end of the input.
    bool read(Record &record) {
        uint64_t first;
        if (fread(&first, sizeof first, 1, stdin) != 1) return false;
        record.operation = first;
        for (uint64_t *field : {&record.core, &record.operand, &record.region, &record.lane, &record.block,
                                &record.outcome, &record.address, &record.is_new, &record.translation,
                                &record.freed, &record.aac_misses, &record.aac_evictions})
            *field = word();
        record.accesses.resize(word());
        for (uint64_t &access : record.accesses) access = word();
        record.arenas.resize(word());
        for (NewArena &arena : record.arenas)
            for (uint64_t *field : {&arena.size_class, &arena.refused, &arena.address, &arena.page})
                *field = word();
        record.rows.resize(word());
        for (Row &row : record.rows) {
            for (uint64_t *field :
                 {&row.core, &row.size_class, &row.valid, &row.dirty, &row.page, &row.available, &row.full})
                *field = word();
            read(row.header);
        }
        record.headers.resize(word());
        for (auto &[page, header] : record.headers) {
            page = word();
            read(header);
            header.prev = word();
            header.next = word();
        }
        record.pointers.resize(word());
        for (auto &[core, pointers] : record.pointers) {
            core = word();
            pointers.resize(word());
            for (uint64_t &pointer : pointers) pointer = word();
        }
        return true;
    }

  private:
    uint64_t word() {
        uint64_t word;
        if (fread(&word, sizeof word, 1, stdin) != 1) {
            fprintf(stderr, "sim/rtl: the records are cut short\n");
            exit(2);
        }
        return word;
    }

    void read(Header &header) {
        header.arena = word();
        for (uint64_t &bits : header.bitmap) bits = word();
        header.bypass = word();
    }
};
