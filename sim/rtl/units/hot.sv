// The Hardware Object Table [3.1]: a row for each size class, found without a search. The rows are a memory
// with one read port, whose answer is there after the clock edge, and one write port; the valid bits are
// flip-flops, so that all rows are dropped at once.
module hot (
    input  logic            clk,
    input  logic            drop_all,
    input  memento::class_t read_class,
    output logic            valid,
    output memento::entry_t entry,
    input  logic            write,
    input  memento::class_t write_class,
    input  memento::entry_t write_entry
);
  logic [memento::ENTRY_BITS-1:0] rows[memento::CLASSES]  /*verilator public_flat_rd*/;
  logic [memento::CLASSES-1:0] valid_rows  /*verilator public_flat_rd*/;

  always_ff @(posedge clk) begin
    valid <= valid_rows[read_class];
    entry <= rows[read_class];
    if (write) begin
      rows[write_class] <= write_entry;
      valid_rows[write_class] <= 1'b1;
    end
    if (drop_all) valid_rows <= '0;
  end
endmodule
