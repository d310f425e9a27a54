// The lowest set bit, by a tree: each node takes its lower half's answer if there is one, else the upper
// half's. WIDTH is a power of two, at least 2; the tree has log2(WIDTH) levels.
module find_first #(
    parameter int unsigned WIDTH = 256,
    parameter int unsigned BITS  = $clog2(WIDTH)
) (
    input  logic [WIDTH-1:0] bits,
    output logic             found,
    output logic [ BITS-1:0] index
);
  if (WIDTH == 2) begin : leaf
    assign found = bits[0] | bits[1];
    assign index = ~bits[0];
  end else begin : node
    logic lower_found, upper_found;
    logic [BITS-2:0] lower, upper;
    find_first #(
        .WIDTH(WIDTH / 2)
    ) lower_half (
        .bits (bits[WIDTH/2-1:0]),
        .found(lower_found),
        .index(lower)
    );
    find_first #(
        .WIDTH(WIDTH / 2)
    ) upper_half (
        .bits (bits[WIDTH-1:WIDTH/2]),
        .found(upper_found),
        .index(upper)
    );
    assign found = lower_found | upper_found;
    assign index = lower_found ? {1'b0, lower} : {1'b1, upper};
  end
endmodule
