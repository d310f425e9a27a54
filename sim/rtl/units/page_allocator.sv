// The page allocator, as far as it hands out arenas' addresses [3.2]: the bump pointer of the thread's class,
// out of the AAC or of the thread's block in memory, moves on by an arena; a page of the pool backs the
// arena's first page. A thread that has moved to another core may have left its pointer in that core's entry:
// one that misses is first looked for in all entries, and taken back. Pool, page table and walks are not in
// here: `pool_take` waits for a page.
module page_allocator #(
    parameter int unsigned AAC_ENTRIES  = 32,
    parameter int unsigned AAC_POINTERS = 7
) (
    input logic clk,
    input logic reset,

    // A core's request; its inputs stay until `done`.
    input  logic                             start,
    input  logic                             forget,      // instead: the thread's block is being freed
    input  logic           [$clog2(AAC_ENTRIES)-1:0] core,
    input  memento::physical_page_t          block,
    input  memento::class_t                  size_class,
    output logic                             done,
    output memento::outcome_t                refusal,     // HIT: none
    output memento::virtual_page_t           arena,
    output memento::physical_page_t          arena_page,

    // Bump pointers in the threads' blocks.
    output logic                    memory_request,
    output logic                    memory_write,
    output memento::physical_page_t memory_block,
    output memento::class_t         memory_class,
    output memento::virtual_page_t  memory_pointer,
    input  logic                    memory_done,
    input  memento::virtual_page_t  pointer_read,

    output logic                    pool_take,
    input  logic                    pool_done,
    input  memento::physical_page_t pool_page
);
  typedef enum logic [3:0] {
    IDLE,
    LOOK_UP,
    SEARCH_READ,
    SEARCH,
    TAKE_BACK,
    RETURN,
    MISSED,
    EVICT,
    LOAD,
    ADVANCE,
    TAKE,
    FORGET_READ,
    FORGET
  } state_t;
  state_t state;
  localparam int unsigned LAST_ENTRY = AAC_ENTRIES - 1;
  logic [$clog2(AAC_ENTRIES)-1:0] entry;  // that SEARCH or FORGET has come to
  logic searches, is_last;

  logic hit, evicts, insert;
  memento::virtual_page_t held, pointer, inserted, advanced;
  memento::physical_page_t victim_block;
  memento::class_t victim_class;
  memento::virtual_page_t victim;
  aac #(
      .ENTRIES (AAC_ENTRIES),
      .POINTERS(AAC_POINTERS)
  ) aac (
      .which(searches ? entry : core),
      .pointer(held),
      .of_any_class(state == FORGET),
      .remove(state == FORGET || state == TAKE_BACK && memory_done),
      .*
  );

  // How far an arena would reach into its class's range, which fewer bits than the address' hold.
  logic [memento::CLASS_PAGE_BITS+1:0] reaches;
  logic is_full;
  assign advanced = pointer + {30'b0, memento::arena_pages(size_class)};
  assign reaches = advanced[memento::CLASS_PAGE_BITS+1:0]
      - {size_class[1:0], {memento::CLASS_PAGE_BITS{1'b0}}};
  assign is_full = reaches > {2'b01, {memento::CLASS_PAGE_BITS{1'b0}}};

  assign insert = state == ADVANCE && is_full || state == TAKE && pool_done;
  assign inserted = is_full ? pointer : advanced;
  assign searches = state == SEARCH_READ || state == SEARCH || state == TAKE_BACK
      || state == FORGET_READ || state == FORGET;
  assign is_last = entry == LAST_ENTRY[$clog2(AAC_ENTRIES)-1:0];
  assign memory_request = state == TAKE_BACK || state == EVICT || state == LOAD;
  assign memory_write = state != LOAD;
  assign memory_block = state == EVICT ? victim_block : block;
  assign memory_class = state == EVICT ? victim_class : size_class;
  assign memory_pointer = state == EVICT ? victim : held;
  assign pool_take = state == TAKE;

  always_ff @(posedge clk) begin
    done <= 1'b0;
    case (state)
      IDLE: begin
        entry <= '0;
        if (start) state <= forget ? FORGET_READ : LOOK_UP;
      end
      LOOK_UP: begin
        pointer <= held;
        state   <= hit ? ADVANCE : SEARCH_READ;
      end
      SEARCH_READ: state <= SEARCH;
      SEARCH: begin
        if (!hit) entry <= entry + 1;
        state <= hit ? TAKE_BACK : is_last ? RETURN : SEARCH_READ;
      end
      TAKE_BACK: if (memory_done) state <= RETURN;
      RETURN: state <= MISSED;  // to the core's own entry
      MISSED: state <= evicts ? EVICT : LOAD;
      EVICT: if (memory_done) state <= LOAD;
      LOAD: begin
        pointer <= pointer_read;
        if (memory_done) state <= ADVANCE;
      end
      ADVANCE: begin
        done <= is_full;
        refusal <= memento::REGION_FULL;
        state <= is_full ? IDLE : TAKE;
      end
      TAKE:
      if (pool_done) begin
        done <= 1'b1;
        refusal <= memento::HIT;
        arena <= pointer;
        arena_page <= pool_page;
        state <= IDLE;
      end
      FORGET_READ: state <= FORGET;
      FORGET: begin
        entry <= entry + 1;
        done  <= is_last;
        state <= is_last ? IDLE : FORGET_READ;
      end
      default: state <= IDLE;
    endcase
    if (reset) state <= IDLE;
  end
endmodule
