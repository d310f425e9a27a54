// The arena that an address belongs to, for frees that miss the HOT [3.2]: a class's arenas lie one after the
// other, and begin some pages into the class's range, two classes at one distance. Pages are counted from the
// range's start.
module arena_of (
    input  memento::class_t        size_class,
    input  memento::class_page_t   page,
    output logic                   is_inside,     // not before the first arena
    output memento::class_page_t   first_page,    // the arena's
    output logic            [ 5:0] page_in_arena
);
  memento::class_page_t distance, from_first;
  // verilator lint_off UNUSEDSIGNAL
  memento::class_page_t number;  // of the arena
  // verilator lint_on UNUSEDSIGNAL
  assign distance   = {{memento::CLASS_PAGE_BITS-5{1'b0}}, size_class[5:1]};
  assign is_inside  = page >= distance;
  assign from_first = page - distance;
  divide #(
      .DIVIDEND_BITS(memento::CLASS_PAGE_BITS),
      .LARGEST(33)
  ) by_arena (
      .dividend(from_first),
      .divisor(memento::arena_pages(size_class)),
      .quotient(number),
      .remainder(page_in_arena)
  );
  assign first_page = page - {{memento::CLASS_PAGE_BITS-6{1'b0}}, page_in_arena};
endmodule
