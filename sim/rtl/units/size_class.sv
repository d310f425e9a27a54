// The class of a request: its size rounded up to the next 8 bytes. `fits`: 1 to 512 bytes.
module size_class (
    input  logic            [63:0] size,
    output memento::class_t        size_class,
    output logic                   fits
);
  assign size_class = size[8:3] - {5'b0, size[2:0] == 0};
  assign fits = size[63:9] == 0 ? size[8:0] != 0 : size == 64'd512;
endmodule
