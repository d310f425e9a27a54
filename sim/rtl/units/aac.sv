// The Arena Allocation Cache [3.2]: one entry for each core, found by its number, with the bump pointers that
// the core used last. An entry is read in one cycle, and `insert` writes it back in the next with a pointer
// in front: the one that was found moves there, or one that was missing takes the place of a free one, else
// of the last, the victim.
module aac #(
    parameter int unsigned ENTRIES  = 32,
    parameter int unsigned POINTERS = 7
) (
    input logic clk,
    input logic reset,
    input logic [$clog2(ENTRIES)-1:0] which,  // the entry that is read or written

    // Looked for in the entry that was read.
    input  memento::physical_page_t block,         // the thread's
    input  memento::class_t         size_class,
    input  logic                    of_any_class,
    output logic                    hit,
    output memento::virtual_page_t  pointer,
    output logic                    evicts,
    output memento::physical_page_t victim_block,
    output memento::class_t         victim_class,
    output memento::virtual_page_t  victim,

    input logic                   insert,
    input memento::virtual_page_t inserted,
    input logic                   remove     // what was found
);
  localparam int unsigned WIDTH = memento::POINTER_BITS;
  logic [POINTERS*WIDTH-1:0] entries[ENTRIES]  /*verilator public_flat_rd*/;
  logic [ENTRIES*POINTERS-1:0] valid  /*verilator public_flat_rd*/;  // flip-flops, for the reset
  logic [POINTERS*WIDTH-1:0] entry, changed;
  logic [POINTERS-1:0] is_valid, changed_valid, ours;
  always_comb begin
    is_valid = '0;
    for (int unsigned i = 0; i < ENTRIES; i++)
      if (which == i[$clog2(ENTRIES)-1:0]) is_valid = valid[i*POINTERS+:POINTERS];
  end

  memento::pointer_t slot;
  always_comb begin
    pointer = '0;
    for (int unsigned i = 0; i < POINTERS; i++) begin
      slot = entry[i*WIDTH+:WIDTH];
      ours[i] = is_valid[i] && slot.block == block && (of_any_class || slot.size_class == size_class);
      if (ours[i]) pointer = slot.next;
    end
    {victim_block, victim_class, victim} = slot;
  end
  assign hit = |ours;
  assign evicts = !hit && &is_valid;

  // Slot 0 has the latest. Pointers move back by one as far as the first slot that is free or becomes it.
  logic moves;
  logic [WIDTH-1:0] in_front;
  always_comb begin
    moves = 1'b1;
    in_front = {block, size_class, inserted};
    for (int unsigned i = 0; i < POINTERS; i++) begin
      changed[i*WIDTH+:WIDTH] = entry[i*WIDTH+:WIDTH];
      if (moves) changed[i*WIDTH+:WIDTH] = in_front;
      in_front = entry[i*WIDTH+:WIDTH];
      changed_valid[i] = is_valid[i] && !ours[i] || moves;
      if (ours[i] || !is_valid[i]) moves = 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    entry <= entries[which];
    if (insert) entries[which] <= changed;
    for (int unsigned i = 0; i < ENTRIES; i++) begin
      if (which == i[$clog2(ENTRIES)-1:0]) begin
        if (insert) valid[i*POINTERS+:POINTERS] <= changed_valid;
        if (remove) valid[i*POINTERS+:POINTERS] <= is_valid & ~ours;
      end
    end
    if (reset) valid <= '0;
  end
endmodule
