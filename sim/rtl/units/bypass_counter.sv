// The bypass counter [3.3]: lines of an arena after this one have not been accessed since their objects were
// new, so that an access to one need not read DRAM. A line is 8 units of 8 bytes; the header is line 0.
//
// A free lowers the counter over the object's lines, if they were the last to be used and no other live
// object has bytes on them. An arena that leaves the HOT, where accesses no longer reach the counter, has it
// raised to its last live object.
module bypass_counter (
    input  memento::class_t         size_class,
    input  memento::bitmap_t        bitmap,
    input  memento::bypass_t        counter,
    input  memento::index_t         index,       // the object that is freed
    input  logic             [11:0] line,        // the line that is accessed
    output logic                    is_new,      // no access has reached it
    output memento::bypass_t        after_free,
    output memento::bypass_t        on_leaving
);
  assign is_new = line > {1'b0, counter} && !line[11];

  // The object's first and last line, and the place on each where it and its successor begin.
  logic [6:0] units;
  memento::unit_t start, next;
  memento::bypass_t first;
  logic [11:0] last;
  assign units = memento::object_units(size_class);
  assign start = memento::HEADER_UNITS + {7'b0, index} * {8'b0, units};
  assign next  = start + {8'b0, units};
  assign first = start[13:3];
  assign last  = next[14:3] - 12'(next[2:0] == 0);

  // Seven neighbours on each side: more do not fit on a line. `window` has those before at 6..0, after at
  // 14..8.
  logic [memento::OBJECTS+13:0] padded;
  logic [14:0] window;
  assign padded = {7'b0, bitmap, 7'b0};
  assign window = padded[{1'b0, index}+:15];

  logic live_before, live_after;
  always_comb begin
    live_before = 1'b0;
    live_after  = 1'b0;
    for (int unsigned k = 1; k <= 7; k++) begin
      // The k-th before ends, and the k-th after begins, k - 1 objects further on.
      if ({7'b0, start[2:0]} > 10'(k - 1) * {3'b0, units}) live_before |= window[7-k];
      if (next[2:0] != 0 && {7'b0, next[2:0]} + 10'(k - 1) * {3'b0, units} < 8) live_after |= window[7+k];
    end
  end
  always_comb begin
    after_free = counter;
    if ({1'b0, counter} == last && !live_after)
      after_free = live_before ? first : first - 1;
  end

  // The last live object: the first one of the bitmap read from its end.
  memento::bitmap_t reversed;
  logic any_live;
  memento::index_t from_end;
  for (genvar i = 0; i < memento::OBJECTS; i++) begin : reverse
    assign reversed[i] = bitmap[memento::OBJECTS-1-i];
  end
  find_first #(
      .WIDTH(memento::OBJECTS)
  ) last_live (
      .bits (reversed),
      .found(any_live),
      .index(from_end)
  );
  memento::unit_t after_live;
  logic [11:0] live_line;
  memento::bypass_t capped;
  assign after_live = ({7'b0, ~from_end} + 1) * {8'b0, units} + memento::HEADER_UNITS;
  assign live_line = after_live[14:3] - 12'(after_live[2:0] == 0);
  assign capped = live_line[11] ? '1 : live_line[10:0];
  assign on_leaving = any_live && capped > counter ? capped : counter;
endmodule
