// Silo's own benchmarks as a program that marks its measured part: silo ycsb|tpcc TRANSACTIONS SCALE [own]
//
//   ycsb   four reads to one write of 100 bytes, in a table of SCALE thousand rows
//   tpcc   TPC-C with SCALE warehouses
//   own    memory from regions of Silo's own (its --numa-memory), of 256 MiB, in place of malloc
//
// This file replaces Silo's main file, which needs the other databases that Silo can be compared with. There is one worker; the
// second half of its transactions is the steady state (§5). The clock that begins Silo's epochs is a thread too.
#include "benchmarks/bench.h"
#include "benchmarks/ndb_wrapper.h"
#include "benchmarks/ndb_wrapper_impl.h"

#include "measured.h"

namespace {

// Silo, with a count of the worker's transactions; those that load the tables are not marked.
class counted : public ndb_wrapper<transaction_proto2> {
    using silo = ndb_wrapper<transaction_proto2>;

  public:
    counted() : silo({}, {}, false, false, false) {}

    void *new_txn(uint64_t flags, str_arena &arena, void *buffer, TxnProfileHint what) override {
        if (what != HINT_DEFAULT) {
            if (begun == ops_per_worker / 4) warming();
            if (begun == ops_per_worker / 2) measured();
            begun++;
        }
        return silo::new_txn(flags, arena, buffer, what);
    }

    bool commit_txn(void *transaction) override {
        bool is_done = silo::commit_txn(transaction);
        if (begun) committed += is_done;
        return is_done;
    }

    void thread_end() override {
        if (begun) finished();
        silo::thread_end();
    }

    uint64_t begun = 0, committed = 0;
};

} // namespace

int main(int argc, char **argv) {
    std::string name = argc > 1 ? argv[1] : "";
    if (argc < 4 || (name != "ycsb" && name != "tpcc") || (ops_per_worker = strtoul(argv[2], nullptr, 10)) < 4 ||
        (scale_factor = atof(argv[3])) <= 0) {
        std::cerr << "usage: silo ycsb|tpcc TRANSACTIONS SCALE [own]\n";
        return 2;
    }
    run_mode = RUNMODE_OPS;
    if (argc > 4) {
        allocator::Initialize(nthreads, 256 << 20);
        pin_cpus = 1;
    }
    counted silo;
    optind = 1;
    (name == "ycsb" ? ycsb_do_test : tpcc_do_test)(&silo, 1, argv);
    std::cout << "silo: " << name << ", " << silo.committed << " of " << silo.begun << " transactions committed" << std::endl;
}
