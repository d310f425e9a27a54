// The arena that an address belongs to, for frees that miss the HOT [3.2]: a class's arenas lie one after the
// other, and begin some pages into the class's range, two classes at one distance. Pages are counted from the
// range's start.
module arena_of (
    input  memento::class_t        size_class,
    input  logic            [11:0] page,
    output logic                   is_inside,     // not before the first arena
    output logic            [11:0] first_page,    // the arena's
    output logic            [ 5:0] page_in_arena
);
  logic [11:0] distance, from_first;
  // verilator lint_off UNUSEDSIGNAL
  logic [11:0] number;  // of the arena
  // verilator lint_on UNUSEDSIGNAL
  assign distance   = {7'b0, size_class[5:1]};
  assign is_inside  = page >= distance;
  assign from_first = page - distance;
  divide #(
      .DIVIDEND_BITS(12),
      .LARGEST(33)
  ) by_arena (
      .dividend(from_first),
      .divisor(memento::arena_pages(size_class)),
      .quotient(number),
      .remainder(page_in_arena)
  );
  assign first_page = page - {6'b0, page_in_arena};
endmodule
