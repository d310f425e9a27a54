// The lockstep: reads records of memento-lockstep from standard input, has each operation executed by the
// verilated units, and compares answers, accesses, rows, headers and the AAC. The first difference ends it,
// with exit status 1. Otherwise prints what was executed as a JSON object. Each core has an object allocator;
// the page allocator is one.
#include "units.h"

static std::string name(const Record &record) {
    static const char *const names[] = {"obj-alloc of size ", "obj-free of ", "access to ",
                                        "flush",              "initialisation", "discarding",
                                        "forgetting a block", "begin"};
    std::string text = names[record.operation];
    if (record.operation == ALLOCATE) text += std::to_string(record.operand);
    else if (record.operation <= TOUCH) text += hex(record.operand);
    return text + " by core " + std::to_string(record.core);
}

struct Machine {
    Counts &counts;
    bool eager;
    Memory memory{};
    PageAllocator pages{counts};
    std::map<uint64_t, std::unique_ptr<ObjectAllocator>> cores{};

    ObjectAllocator &core(uint64_t number) {
        auto &found = cores[number];
        if (!found) found = std::make_unique<ObjectAllocator>(counts, eager);
        return *found;
    }

    void execute(const Record &record) {
        pages.misses = pages.evictions = 0;
        if (record.operation == FORGET) pages.forget(record.block, memory);
        else core(record.core).execute(record, memory, pages);
        same("the AAC's misses", record.aac_misses, pages.misses);
        same("the AAC's evictions", record.aac_evictions, pages.evictions);
        for (const Row &row : record.rows) core(row.core).compare(row);
        for (const auto &[page, model] : record.headers) {
            const Header &hardware = memory.headers[page];
            std::string what = "the header at " + hex(page) + ": ";
            ObjectAllocator::compare(what, model, hardware);
            same(what + "prev", model.prev, hardware.prev);
            same(what + "next", model.next, hardware.next);
        }
        for (const auto &[core, model] : record.pointers) {
            std::vector<uint64_t> hardware = pages.entry(core);
            std::string what = "the AAC's entry of core " + std::to_string(core) + ": ";
            same(what + "pointers", model.size(), hardware.size());
            for (size_t slot = 0; slot < model.size(); slot++)
                same(what + "pointer " + std::to_string(slot), model[slot], hardware[slot]);
        }
    }
};

int main() {
    Counts counts;
    std::unique_ptr<Machine> machine;
    Reader reader;
    Record record;
    uint64_t operations = 0;
    try {
        while (reader.read(record)) {
            if (record.operation == BEGIN) {
                machine.reset(new Machine{counts, record.operand != 0});
                continue;
            }
            machine->execute(record);
            operations++;
            static const char *const names[] = {"allocations", "frees",    "accesses",     "flushes",
                                                "initialisations", "discards", "blocks_forgotten"};
            counts[names[record.operation]]++;
        }
    } catch (const std::string &difference) {
        std::string text = "operation " + std::to_string(operations) + ", " + name(record);
        fprintf(stderr, "sim/rtl: %s: %s\n", text.c_str(), difference.c_str());
        return 1;
    }
    counts["operations"] = operations;
    std::string object;
    for (const auto &[what, count] : counts)
        object += (object.empty() ? "{\"" : ", \"") + what + "\": " + std::to_string(count);
    printf("%s}\n", object.c_str());
}
