// The object allocator of a core [3.1, Fig. 6]: obj-alloc and obj-free on the HOT's rows, and what follows
// from them: loading and writing back of headers, moves between the arena lists, requests of arenas.
//
// A hit takes two cycles: in the first the row is read, in the second it is changed and written, and the
// answer is in `outcome` and `address` after that clock edge, with `done`. What the row alone cannot answer
// goes through the other states, each an access to memory, to the TLB or to the page allocator; one operation
// is executed at a time. Headers and list heads are accessed in the order in which sim/memento does.
module object_allocator (
    input logic clk,
    input logic reset,

    // The thread on the core.
    input memento::region_t        region,
    input memento::lane_t          lane,
    input memento::physical_page_t block,
    input logic                    eager,   // load the next arena when the last object is allocated

    input  logic                       start,
    input  memento::operation_t        operation,
    input  logic                [63:0] operand,
    output logic                       busy,
    output logic                       done,       // answered; an arena may still be loaded in the background
    output memento::outcome_t          outcome,
    output logic                [47:0] address,
    output logic                       is_new,     // TOUCH: the line need not be read from DRAM

    output logic                       memory_request,    // held until `memory_done`
    output memento::memory_operation_t memory_operation,
    output memento::physical_page_t    memory_page,       // of the header, or the thread's block
    output memento::class_t            memory_class,
    output memento::header_t           memory_header,
    output memento::lists_t            memory_lists,
    input  logic                       memory_done,
    input  memento::header_t           header_read,
    input  memento::lists_t            lists_read,

    output logic                    translate,         // the arena's address, by TLB or walk
    output memento::virtual_page_t  translate_page,
    input  logic                    translate_done,
    input  memento::physical_page_t translation,       // 0: no page is there

    output logic                    arena_new,
    output logic                    arena_free,
    output memento::class_t         arena_class,
    output memento::virtual_page_t  arena_freed,
    input  logic                    arena_done,
    input  memento::outcome_t       arena_refusal,   // HIT: none
    input  memento::virtual_page_t  arena_address,
    input  memento::physical_page_t arena_page
);
  memento::state_t state, next_state;
  memento::operation_t doing;
  logic [63:0] argument;
  memento::class_t size_class;  // of the operation, or where a flush or an initialisation has come to
  memento::entry_t row, next_row;  // a copy of the HOT's, once an operation is more than a hit
  memento::header_t header;  // of the arena that a free finds in memory
  memento::physical_page_t other, former_head;  // that arena; the full list's head before a replacement
  logic fits, is_inside;
  logic is_valid;  // the HOT's row is
  logic is_miss;
  logic is_replacing;  // a full arena by another
  logic in_background;  // the operation has been answered
  memento::class_page_t located;  // the arena's first page in its class's range, and the object's page in the arena
  logic [5:0] located_page;

  // The operation's class, and the row.
  logic operand_fits, hot_valid, hot_write, hot_drop, held;
  memento::class_t class_of_size, first_class;
  memento::entry_t hot_row, current;
  size_class by_size (
      .size(operand),
      .size_class(class_of_size),
      .fits(operand_fits)
  );
  always_comb begin
    case (operation)
      memento::ALLOCATE: first_class = class_of_size;
      memento::FREE, memento::TOUCH: first_class = operand[memento::CLASS_BIT+:6];
      default: first_class = '0;
    endcase
  end
  hot hot (
      .clk,
      .drop_all(hot_drop || reset),
      .read_class(state == memento::IDLE ? first_class : size_class),
      .valid(hot_valid),
      .entry(hot_row),
      .write(hot_write),
      .write_class(size_class),
      .write_entry(next_row)
  );
  assign current = state == memento::EXECUTE && !is_miss ? hot_row : row;
  assign held = (is_miss || hot_valid) && holds;

  // What the row, or a header from memory, answers.
  logic in_memory, has_free, becomes_full, holds, is_object, is_allocated, becomes_empty, line_is_new;
  memento::bitmap_t with_object, without_object;
  memento::bypass_t accessed, after_free, on_leaving;
  logic [47:0] free_address;
  assign in_memory = state == memento::CHECK || state == memento::STORE || state == memento::LINK;
  object_operations operations (
      .size_class,
      .argument,
      .arena(current.arena),
      .bitmap(in_memory ? header.bitmap : current.bitmap),
      .counter(in_memory ? header.bypass : current.bypass),
      .is_located(state != memento::EXECUTE),
      .located_page,
      .*
  );

  // A free that misses: the arena of its address.
  logic in_region, is_in_class, was_full;
  memento::class_page_t arena_first_page;
  logic [5:0] arena_page_number;
  memento::virtual_page_t arena;
  assign in_region = argument[63:memento::REGION_BIT] == {16'b0, region};
  arena_of by_arena (
      .size_class,
      .page(argument[memento::CLASS_BIT-1:12]),
      .is_inside(is_in_class),
      .first_page(arena_first_page),
      .page_in_arena(arena_page_number)
  );
  assign arena = {argument[47:memento::CLASS_BIT], located};
  assign was_full = &header.bitmap;

  // LINK: a replacement takes the head out of the available list, and puts the full arena into the full list;
  // a free moves the arena from the full list to the available one, or takes it out of that.
  logic link_write, link_done;
  memento::memory_operation_t link_operation;
  memento::physical_page_t link_page, link_value;
  arena_lists lists (
      .clk,
      .active(state == memento::LINK),
      .unlink(1'b1),
      .prev(is_replacing ? '0 : header.prev),
      .next(is_replacing ? row.available : header.next),
      .push(is_replacing || was_full),
      .head(is_replacing ? former_head : row.available),
      .pushed(is_replacing ? row.full : other),
      .write(link_write),
      .operation(link_operation),
      .page(link_page),
      .link(link_value),
      .written(memory_done),
      .done(link_done)
  );

  // What each state asks of memory, TLB and page allocator.
  memory_port port (.*);
  assign memory_class = size_class;
  assign memory_lists = {row.page, row.available, row.full};
  assign translate = state == memento::TRANSLATE;
  assign translate_page = arena;
  assign arena_new = state == memento::REQUEST_ARENA;
  assign arena_free = state == memento::RETURN_ARENA;
  assign arena_class = size_class;
  assign arena_freed = arena;
  assign busy = state != memento::IDLE;

  // The next state, the row that is written, and the answer.
  logic answer, is_last_class, waits;
  memento::outcome_t answered;
  assign is_last_class = size_class == memento::LAST_CLASS;
  always_comb begin
    next_state = state;
    next_row = row;
    hot_write = 1'b0;
    hot_drop = 1'b0;
    answer = 1'b0;
    answered = state == memento::EXECUTE && !is_miss ? memento::HIT : memento::MISS;
    case (state)
      memento::IDLE: begin
        next_row = '0;
        hot_drop = start && operation == memento::DISCARD;
        answer   = hot_drop;
        if (start) begin
          case (operation)
            memento::FLUSH: next_state = memento::FLUSH_ROW;
            memento::INITIALISE: next_state = memento::REQUEST_ARENA;
            memento::DISCARD: ;
            default: next_state = memento::EXECUTE;
          endcase
        end
      end
      memento::EXECUTE: begin
        next_row = current;
        answer   = 1'b1;
        case (doing)
          memento::ALLOCATE: begin
            if (!fits) answered = memento::WRONG_SIZE;
            else if (!is_miss && !hot_valid) {answer, next_state} = {1'b0, memento::LOAD_LISTS};
            else if (!has_free) {answer, next_state} = {1'b0, memento::WRITE_BACK};
            else begin
              hot_write = 1'b1;
              next_row.dirty = 1'b1;
              next_row.bitmap = with_object;
              if (eager && becomes_full) next_state = memento::WRITE_BACK;
            end
          end
          memento::FREE: begin
            if (!in_region) answered = memento::NOT_IN_REGION;
            else if (!held) {answer, next_state} = {1'b0, memento::LOCATE};
            else if (!is_object) answered = memento::NOT_AN_OBJECT;
            else if (!is_allocated) answered = memento::DOUBLE_FREE;
            else begin
              hot_write = 1'b1;
              next_row.dirty = 1'b1;
              next_row.bitmap = without_object;
              next_row.bypass = after_free;
            end
          end
          default: begin
            if (!held) answered = memento::MISS;
            else if (line_is_new) begin
              hot_write = 1'b1;
              next_row.dirty = 1'b1;
              next_row.bypass = accessed;
            end
          end
        endcase
        if (answer && next_state == memento::EXECUTE) next_state = memento::IDLE;
      end
      memento::LOAD_LISTS: begin
        next_row = '0;
        next_row.page = lists_read.current;
        next_row.available = lists_read.available;
        next_row.full = lists_read.full;
        if (memory_done) begin
          if (lists_read.current != 0) next_state = memento::LOAD_HEADER;
          else if (doing == memento::ALLOCATE) next_state = memento::REQUEST_ARENA;
          else {answer, answered} = {1'b1, memento::NO_ARENA};
        end
      end
      memento::LOAD_HEADER: begin
        next_row = {
          1'b0,
          is_replacing ? row.available : row.page,
          is_replacing ? header_read.next : row.available,
          is_replacing ? row.page : row.full,
          header_read.arena,
          header_read.bitmap,
          header_read.bypass
        };
        hot_write = memory_done && !is_replacing;
        if (memory_done) next_state = is_replacing ? memento::LINK : memento::EXECUTE;
      end
      memento::WRITE_BACK: begin
        next_row.dirty = 1'b0;
        next_row.bypass = on_leaving;
        hot_write = memory_done;
        if (memory_done) next_state = row.available != 0 ? memento::LOAD_HEADER : memento::REQUEST_ARENA;
      end
      memento::REQUEST_ARENA: begin
        next_row = {
          1'b1,
          arena_page,
          row.available,
          is_replacing ? row.page : row.full,
          arena_address,
          memento::NO_OBJECT,
          memento::NO_LINE
        };
        if (arena_done && arena_refusal != memento::HIT) begin
          {answer, answered} = {!in_background, arena_refusal};
          next_state = memento::IDLE;
        end else if (arena_done) begin
          hot_write = !is_replacing;
          if (is_replacing) next_state = memento::LINK;
          else if (doing == memento::ALLOCATE) next_state = memento::EXECUTE;
          else answer = is_last_class;
        end
      end
      memento::LINK: begin
        if (!is_replacing) begin
          if (was_full) next_row.available = other;
          else if (header.prev == 0) next_row.available = header.next;
          if (was_full && header.prev == 0) next_row.full = header.next;
        end
        hot_write = link_done;
        if (link_done) begin
          if (in_background) next_state = memento::IDLE;
          else if (is_replacing) next_state = memento::EXECUTE;
          else if (becomes_empty) next_state = memento::RETURN_ARENA;
          else answer = 1'b1;
        end
      end
      memento::LOCATE: next_state = memento::FIND;
      memento::FIND: begin
        if (!is_inside || !is_object) {answer, answered} = {1'b1, memento::NOT_AN_OBJECT};
        else if (argument[memento::LANE_BIT+:5] != lane) {answer, answered} = {1'b1, memento::NON_LOCAL};
        else next_state = is_valid ? memento::TRANSLATE : memento::LOAD_LISTS;
      end
      memento::TRANSLATE: begin
        if (translate_done && translation == 0) {answer, answered} = {1'b1, memento::NO_ARENA};
        else if (translate_done) next_state = memento::FETCH;
      end
      memento::FETCH: if (memory_done) next_state = memento::CHECK;
      memento::CHECK: begin
        if (header.arena != arena) {answer, answered} = {1'b1, memento::NO_ARENA};
        else if (!is_allocated) {answer, answered} = {1'b1, memento::DOUBLE_FREE};
        else next_state = memento::STORE;
      end
      memento::STORE: begin
        if (memory_done && (was_full || becomes_empty)) next_state = memento::LINK;
        else answer = memory_done;
      end
      memento::RETURN_ARENA: answer = arena_done;
      memento::FLUSH_READ: next_state = memento::FLUSH_ROW;
      memento::FLUSH_ROW: begin
        next_row = hot_row;
        if (hot_valid) next_state = hot_row.dirty ? memento::FLUSH_HEADER : memento::FLUSH_LISTS;
        else if (!is_last_class) next_state = memento::FLUSH_READ;
        else {answer, hot_drop} = 2'b11;
      end
      memento::FLUSH_HEADER: if (memory_done) next_state = memento::FLUSH_LISTS;
      memento::FLUSH_LISTS: begin
        if (memory_done && !is_last_class) next_state = memento::FLUSH_READ;
        else {answer, hot_drop} = {2{memory_done}};
      end
      default: next_state = memento::IDLE;
    endcase
    if (answer && state != memento::EXECUTE) next_state = memento::IDLE;
  end

  assign waits = memory_request && !memory_done || arena_new && !arena_done
      || state == memento::LINK && !link_done;

  always_ff @(posedge clk) begin
    state <= reset ? memento::IDLE : next_state;
    if (!waits) row <= next_row;
    done <= answer && !reset;
    if (answer) begin
      outcome <= answered;
      address <= free_address;
      is_new <= doing == memento::TOUCH && held && line_is_new;
    end
    case (state)
      memento::IDLE: begin
        doing <= operation;
        argument <= operand;
        size_class <= first_class;
        fits <= operand_fits;
        is_miss <= 1'b0;
        is_replacing <= 1'b0;
        in_background <= 1'b0;
      end
      memento::EXECUTE: begin
        is_valid <= is_miss || hot_valid;
        is_replacing <= next_state == memento::WRITE_BACK;
        in_background <= answer;
      end
      memento::LOAD_HEADER, memento::REQUEST_ARENA, memento::LINK:
      if (next_state == memento::EXECUTE) is_miss <= 1'b1;
      memento::WRITE_BACK: former_head <= row.full;
      memento::LOCATE: begin
        is_inside <= is_in_class;
        located <= arena_first_page;
        located_page <= arena_page_number;
      end
      memento::TRANSLATE: other <= translation;
      memento::FETCH: header <= header_read;
      default: ;
    endcase
    if (next_state == memento::FLUSH_READ || doing == memento::INITIALISE && arena_new && arena_done)
      size_class <= size_class + 1;
  end
endmodule
