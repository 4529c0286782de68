/* Memory of record batches, handed to Arrow through its C data interface and used again once Arrow let go of it.
 *
 * An arena is one piece of memory with a count of those who use it: its sheet, and the batch in it while anybody holds
 * that or a column of it. A batch is a holder: the struct array, one child per column, their buffers. Arrow may let go in
 * any thread, without the interpreter's lock, so the counts are atomic.
 */
#ifndef PENSTOCK_ARENAS_H
#define PENSTOCK_ARENAS_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
struct ArrowArray { /* as the interface lays it down */
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif

typedef struct { long users; int64_t size; unsigned char *bytes; } penstock_arena;
typedef struct {
    long users;
    penstock_arena *arena;
    struct ArrowArray batch, *columns;
    struct ArrowArray **pointers;
    const void **buffers; /* one of the batch, three of each column */
} penstock_holder;

/* NULL without memory; 64 bytes is the alignment Arrow likes. */
static void *arena_new(int64_t size) {
    void *bytes; penstock_arena *arena = malloc(sizeof *arena);
    if (!arena) return NULL;
    if (posix_memalign(&bytes, 64, (size_t)(size > 0 ? size : 1))) { free(arena); return NULL; }
    arena->users = 1; arena->size = size; arena->bytes = bytes;
    return arena;
}
static unsigned char *arena_bytes(void *arena) { return ((penstock_arena *)arena)->bytes; }
static int *arena_words(void *arena) { return (int *)((penstock_arena *)arena)->bytes; }
static long long *arena_quads(void *arena) { return (long long *)((penstock_arena *)arena)->bytes; }
/* -1 of none. */
static int64_t arena_size(void *arena) { return arena ? ((penstock_arena *)arena)->size : -1; }
/* Whether only its sheet has it. */
static int arena_idle(void *arena) {
    return arena && __atomic_load_n(&((penstock_arena *)arena)->users, __ATOMIC_ACQUIRE) == 1;
}
static void arena_drop(void *given) {
    penstock_arena *arena = given;
    if (arena && __atomic_sub_fetch(&arena->users, 1, __ATOMIC_ACQ_REL) == 0) { free(arena->bytes); free(arena); }
}

static void penstock_let_go(struct ArrowArray *array) {
    penstock_holder *holder = array->private_data; int64_t i;
    for (i = 0; i < array->n_children; i++)
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
    array->release = NULL;
    if (__atomic_sub_fetch(&holder->users, 1, __ATOMIC_ACQ_REL) == 0) {
        arena_drop(holder->arena);
        free(holder->columns); free(holder->pointers); free(holder->buffers); free(holder);
    }
}
static void penstock_array(struct ArrowArray *array, penstock_holder *holder, const void **buffers, int64_t rows) {
    memset(array, 0, sizeof *array);
    array->length = rows; array->buffers = buffers; array->release = penstock_let_go; array->private_data = holder;
}
/* A batch of so many rows and columns in an arena; NULL without memory. Each column is then set once. */
static void *batch_new(void *arena, int64_t rows, int64_t columns) {
    penstock_holder *holder = calloc(1, sizeof *holder); int64_t i;
    if (!holder) return NULL;
    holder->columns = calloc((size_t)columns + 1, sizeof *holder->columns);
    holder->pointers = calloc((size_t)columns + 1, sizeof *holder->pointers);
    holder->buffers = calloc((size_t)columns * 3 + 1, sizeof *holder->buffers);
    if (!holder->columns || !holder->pointers || !holder->buffers) {
        free(holder->columns); free(holder->pointers); free(holder->buffers); free(holder); return NULL;
    }
    holder->users = columns + 1; holder->arena = arena;
    __atomic_add_fetch(&holder->arena->users, 1, __ATOMIC_ACQ_REL);
    penstock_array(&holder->batch, holder, holder->buffers, rows);
    holder->batch.n_buffers = 1; holder->batch.n_children = columns; holder->batch.children = holder->pointers;
    for (i = 0; i < columns; i++) {
        holder->pointers[i] = &holder->columns[i];
        penstock_array(&holder->columns[i], holder, holder->buffers + 1 + 3 * i, rows);
    }
    return holder;
}
/* Positions in the arena; bits or data below 0: there is no such buffer. */
static void batch_column(void *given, int64_t column, int64_t nulls, int64_t bits, int64_t values, int64_t data) {
    penstock_holder *holder = given; struct ArrowArray *array = &holder->columns[column];
    unsigned char *bytes = holder->arena->bytes;
    array->null_count = nulls; array->n_buffers = data < 0 ? 2 : 3;
    array->buffers[0] = bits < 0 ? NULL : bytes + bits;
    array->buffers[1] = bytes + values;
    array->buffers[2] = data < 0 ? NULL : bytes + data;
}
/* The address that Arrow imports the batch from; whoever imports it lets go of it. */
static int64_t batch_address(void *holder) {
    return holder ? (int64_t)(uintptr_t)&((penstock_holder *)holder)->batch : 0;
}
#endif
