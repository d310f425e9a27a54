// Writes the links that change when an arena leaves a list, enters one, or both: its old neighbours', and
// those of the arena that was the other list's head. The arena's own links are written with its header.
module arena_lists (
    input  logic                              clk,
    input  logic                              active,     // held until `done`
    input  logic                              unlink,
    input  memento::physical_page_t           prev,
    input  memento::physical_page_t           next,
    input  logic                              push,
    input  memento::physical_page_t           head,       // of the list that it enters
    input  memento::physical_page_t           pushed,
    output logic                              write,
    output memento::memory_operation_t        operation,
    output memento::physical_page_t           page,
    output memento::physical_page_t           link,
    input  logic                              written,
    output logic                              done
);
  logic [1:0] step;
  logic needed;
  always_comb begin
    operation = memento::WRITE_PREV;
    case (step)
      2'd0: begin
        needed = unlink && prev != 0;
        operation = memento::WRITE_NEXT;
        page = prev;
        link = next;
      end
      2'd1: begin
        needed = unlink && next != 0;
        page = next;
        link = prev;
      end
      default: begin
        needed = push && head != 0;
        page = head;
        link = pushed;
      end
    endcase
  end
  assign write = active && step != 2'd3 && needed;
  assign done  = active && step == 2'd3;

  always_ff @(posedge clk) begin
    if (!active) step <= 2'd0;
    else if (!needed || written) step <= step + 2'd1;
  end
endmodule
