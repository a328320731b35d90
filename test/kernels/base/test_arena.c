/* Arenas: placement, reuse, one chunk from the second step on, and running out of memory. */
#include "kernels/base/arena.h"
#include "test/workplace.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Host memory that can run out, and that counts. */
static struct {
    size_t room;    // bytes that may still be taken
    size_t out;     // chunks that are out
    size_t held;    // their bytes
    unsigned takes; // chunks that were asked for
    size_t largest; // that was taken
    unsigned poisonings;
} memory;

static void *memory_take(void *context, size_t bytes)
{
    ck_assert_ptr_eq(context, &memory);
    ck_assert_uint_eq(bytes % ARENA_ALIGNMENT, 0);
    memory.takes++;
    if (bytes > memory.room)
        return NULL;
    size_t *chunk = aligned_alloc(ARENA_ALIGNMENT, bytes + ARENA_ALIGNMENT);
    ck_assert_ptr_nonnull(chunk);
    *chunk = bytes;
    memory.room -= bytes;
    memory.held += bytes;
    memory.out++;
    memory.largest = bytes > memory.largest ? bytes : memory.largest;
    return (char *)chunk + ARENA_ALIGNMENT;
}

static void memory_give(void *context, void *chunk, size_t bytes)
{
    ck_assert_ptr_eq(context, &memory);
    size_t *begin = (size_t *)(void *)((char *)chunk - ARENA_ALIGNMENT);
    ck_assert_uint_eq(*begin, bytes);
    memory.room += *begin;
    memory.held -= *begin;
    memory.out--;
    free(begin);
}

static void memory_poison(void *context, void *block, size_t bytes)
{
    ck_assert_ptr_eq(context, &memory);
    memory.poisonings++;
    memset(block, 0xff, bytes);
}

static struct arena *arena;

static void open_arena(void)
{
    const struct arena_source source = {&memory, memory_take, memory_give, memory_poison};
    memset(&memory, 0, sizeof memory);
    memory.room = 1 << 30;
    ck_assert_int_eq(arena_new(&arena, &source, NULL), STATUS_OK);
    arena_poison(arena, true);
}

static void close_arena(void)
{
    arena_free(arena);
    ck_assert_uint_eq(memory.out, 0);
}

/* One step that takes this much and ends, so that the next one's blocks lie in one chunk. */
static void settle(size_t bytes)
{
    ck_assert_ptr_nonnull(arena_take(arena, bytes));
    arena_reset(arena);
}

static size_t random_below(uint64_t *state, size_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*state >> 33) % limit;
}

START_TEST(nothing_is_taken_before_it_is_asked_for)
{
    ck_assert_uint_eq(memory.takes, 0);
    ck_assert_uint_eq(memory.held, 0);
    arena_reset(arena);
    arena_release(arena, NULL);
    arena_free(NULL);
    ck_assert_uint_eq(memory.out, 0);
}
END_TEST

START_TEST(blocks_are_aligned_and_counted_in_whole_units)
{
    const size_t bytes[] = {0, 1, 63, 64, 65, 1000};
    const size_t whole[] = {64, 64, 64, 64, 128, 1024};
    for (int step = 0; step < 2; step++) {
        size_t sum = 0;
        for (int i = 0; i < 6; i++) {
            void *block = arena_take(arena, bytes[i]);
            ck_assert_uint_eq((uintptr_t)block % ARENA_ALIGNMENT, 0);
            sum += whole[i];
            ck_assert_uint_eq(arena_in_use(arena), sum);
        }
        arena_reset(arena);
        ck_assert_uint_eq(arena_in_use(arena), 0);
    }
}
END_TEST

START_TEST(a_released_block_serves_the_first_that_fits)
{
    settle(1024);
    char *a = arena_take(arena, 128), *b = arena_take(arena, 64), *c = arena_take(arena, 256);
    char *d = arena_take(arena, 64);
    ck_assert(b == a + 128 && c == b + 64 && d == c + 256);
    arena_release(arena, a);
    arena_release(arena, c);
    ck_assert_ptr_eq(arena_take(arena, 200), c); // a is too small
    ck_assert_ptr_eq(arena_take(arena, 64), a);
    ck_assert_ptr_eq(arena_take(arena, 64), a + 64);
    ck_assert_ptr_eq(arena_take(arena, 64), d + 64);
}
END_TEST

START_TEST(a_shared_block_is_released_with_its_last_owner)
{
    settle(1024);
    char *a = arena_take(arena, 128), foreign = 0;
    ck_assert_uint_eq(arena_owners(arena, a), 1);
    arena_share(arena, a);
    arena_share(arena, &foreign);
    ck_assert_uint_eq(arena_owners(arena, &foreign), 0);
    arena_release(arena, a);
    ck_assert_uint_eq(arena_owners(arena, a), 1);
    ck_assert_ptr_eq(arena_take(arena, 64), a + 128);
    arena_release(arena, a);
    ck_assert_uint_eq(arena_owners(arena, a), 0);
    ck_assert_ptr_eq(arena_take(arena, 64), a);
}
END_TEST

START_TEST(released_neighbours_are_one)
{
    settle(1024);
    char *a = arena_take(arena, 64), *b = arena_take(arena, 64), *c = arena_take(arena, 64);
    char *d = arena_take(arena, 64);
    arena_release(arena, c);
    arena_release(arena, a);
    ck_assert_ptr_eq(arena_take(arena, 128), d + 64);
    arena_release(arena, b);
    ck_assert_ptr_eq(arena_take(arena, 192), a);
}
END_TEST

/* One step of many sizes, with early releases; its addresses in `at`. */
enum { STEP_BLOCKS = 200 };

static void run_step(char *at[STEP_BLOCKS], uint64_t seed)
{
    for (int i = 0; i < STEP_BLOCKS; i++) {
        at[i] = arena_take(arena, 1 + random_below(&seed, 5000));
        ck_assert_ptr_nonnull(at[i]);
        if (i % 3 == 2)
            arena_release(arena, at[i - (int)random_below(&seed, 3)]);
    }
}

START_TEST(from_the_second_equal_step_on_nothing_is_asked_and_all_addresses_are_equal)
{
    char *second[STEP_BLOCKS], *later[STEP_BLOCKS];
    run_step(later, 7);
    ck_assert_uint_gt(memory.takes, 1);
    arena_reset(arena);
    const unsigned takes = memory.takes;
    run_step(second, 7);
    ck_assert_uint_eq(memory.takes, takes + 1); // the one chunk
    ck_assert_uint_eq(memory.out, 1);
    for (int step = 0; step < 3; step++) {
        arena_reset(arena);
        run_step(later, 7);
        ck_assert_mem_eq(second, later, sizeof later);
    }
    ck_assert_uint_eq(memory.takes, takes + 1);
}
END_TEST

/* The holes of a and c are in use by nothing, and yet the step needs the room. */
START_TEST(the_chunk_is_as_large_as_the_step_was_with_its_holes)
{
    for (int step = 0; step < 2; step++) {
        void *a = arena_take(arena, 64), *b = arena_take(arena, 64), *c = arena_take(arena, 64);
        ck_assert(b != NULL && arena_take(arena, 64) != NULL);
        arena_release(arena, a);
        arena_release(arena, c);
        ck_assert_ptr_nonnull(arena_take(arena, 128));
        arena_reset(arena);
    }
    ck_assert_uint_eq(memory.held, 6 * 64);
    ck_assert_uint_eq(memory.largest, 6 * 64);
}
END_TEST

START_TEST(a_larger_step_takes_only_what_is_missing_and_the_next_one_chunk)
{
    settle(1000);
    ck_assert_ptr_nonnull(arena_take(arena, 1000));
    const unsigned takes = memory.takes;
    ck_assert_ptr_nonnull(arena_take(arena, 5000));
    ck_assert_uint_eq(memory.takes, takes + 1);
    ck_assert_uint_eq(memory.held, 1024 + 5056);
    arena_reset(arena);
    ck_assert_ptr_nonnull(arena_take(arena, 1));
    ck_assert_uint_eq(memory.held, 1024 + 5056);
    ck_assert_uint_eq(memory.out, 1);
}
END_TEST

static bool all_are(const unsigned char *block, unsigned char value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (block[i] != value)
            return false;
    return true;
}

static bool all_poison(const unsigned char *block, size_t bytes)
{
    return all_are(block, 0xff, bytes);
}

START_TEST(what_is_released_or_reset_is_poisoned)
{
    settle(1024);
    for (int step = 0; step < 3; step++) {
        unsigned char *a = arena_take(arena, 100), *b = arena_take(arena, 70), *c = arena_take(arena, 1);
        memset(a, 1, 128);
        memset(b, 2, 128);
        memset(c, 3, 64);
        arena_release(arena, b);
        ck_assert(all_poison(b, 128));
        ck_assert_int_eq(a[127], 1);
        arena_reset(arena);
        ck_assert(all_poison(a, 128) && all_poison(c, 64));
    }
    arena_poison(arena, false);
    unsigned char *a = arena_take(arena, 100);
    memset(a, 1, 100);
    memory.poisonings = 0;
    arena_reset(arena);
    ck_assert_uint_eq(memory.poisonings, 0);
    ck_assert_int_eq(a[0], 1);
}
END_TEST

START_TEST(a_rollback_releases_what_came_after_the_mark)
{
    settle(4096);
    char *a = arena_take(arena, 64), *b = arena_take(arena, 64), *c = arena_take(arena, 64);
    arena_release(arena, a);
    const uint64_t mark = arena_mark(arena);
    memset(b, 1, 64);
    ck_assert_ptr_eq(arena_take(arena, 64), a); // in front of what was there before
    ck_assert_ptr_nonnull(arena_take(arena, 1000));
    ck_assert_ptr_nonnull(arena_take(arena, 100000)); // beyond the chunk
    arena_rollback(arena, mark);
    ck_assert_uint_eq(arena_in_use(arena), 128);
    ck_assert_int_eq(b[63], 1);
    ck_assert_ptr_eq(arena_take(arena, 64), a);
    ck_assert_ptr_eq(arena_take(arena, 64), c + 64);
    arena_rollback(arena, arena_mark(arena));
    ck_assert_uint_eq(arena_in_use(arena), 256);
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    memory.room = SIZE_MAX;
    ck_assert_ptr_null(arena_take(arena, SIZE_MAX));
    ck_assert_ptr_null(arena_take(arena, SIZE_MAX - 1));
    ck_assert_ptr_null(arena_take(arena, SIZE_MAX - ARENA_ALIGNMENT + 1));
    memory.room = 1 << 20;
    ck_assert_ptr_nonnull(arena_take(arena, 100));
    ck_assert_ptr_null(arena_take(arena, SIZE_MAX - ARENA_ALIGNMENT)); // place + size overflows
    ck_assert_ptr_null(arena_take(arena, SIZE_MAX / 2));
    ck_assert_uint_eq(arena_in_use(arena), 128);
}
END_TEST

START_TEST(without_memory_the_answer_is_null_and_the_arena_goes_on)
{
    memory.room = 256;
    ck_assert_ptr_nonnull(arena_take(arena, 128));
    ck_assert_ptr_nonnull(arena_take(arena, 128));
    ck_assert_ptr_null(arena_take(arena, 64));
    ck_assert_uint_eq(arena_in_use(arena), 256);
    arena_reset(arena);
    ck_assert_ptr_nonnull(arena_take(arena, 256));
    ck_assert_uint_eq(memory.out, 1);
}
END_TEST

/* Two chunks of 128 can be had, one of 256 cannot: the arena makes do with small ones. */
static void *take_small(void *context, size_t bytes)
{
    return bytes <= 128 ? memory_take(context, bytes) : NULL;
}

START_TEST(where_no_large_chunk_can_be_had_small_ones_serve)
{
    struct arena *small = NULL;
    const struct arena_source source = {&memory, take_small, memory_give, memory_poison};
    ck_assert_int_eq(arena_new(&small, &source, NULL), STATUS_OK);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 2; i++) {
            char *block = arena_take(small, 128);
            ck_assert_ptr_nonnull(block);
            memset(block, step, 128);
        }
        arena_reset(small);
    }
    arena_free(small);
    ck_assert_uint_eq(memory.out, 0);
}
END_TEST

/* Every block keeps what was written to it, whatever comes and goes around it. */
START_TEST(blocks_never_overlap)
{
    enum { LIVE = 100, STEPS = 20, MOVES = 400 };
    struct {
        unsigned char *block;
        size_t bytes;
        unsigned char mark;
    } live[LIVE] = {0};
    uint64_t state = 1;
    for (int step = 0; step < STEPS; step++) {
        for (int move = 0; move < MOVES; move++) {
            const size_t i = random_below(&state, LIVE);
            ck_assert(all_are(live[i].block, live[i].mark, live[i].bytes));
            arena_release(arena, live[i].block);
            live[i].bytes = 1 + random_below(&state, 700);
            live[i].mark = (unsigned char)random_below(&state, 256);
            live[i].block = arena_take(arena, live[i].bytes);
            ck_assert_ptr_nonnull(live[i].block);
            memset(live[i].block, live[i].mark, live[i].bytes);
        }
        arena_reset(arena);
        memset(live, 0, sizeof live);
    }
}
END_TEST

/* From malloc's heap, at the size from which a chunk is a mapping of its own, and some pages and a byte more.
 */
START_TEST(host_memory_is_a_source)
{
    static const size_t bytes[] = {1000, 1 << 20, (3 << 20) + 8193};
    struct arena *host = NULL;
    ck_assert_int_eq(arena_new(&host, &arena_host, NULL), STATUS_OK);
    arena_poison(host, true);
    unsigned char *block = arena_take(host, bytes[_i]);
    ck_assert_ptr_nonnull(block);
    ck_assert_uint_eq((uintptr_t)block % ARENA_ALIGNMENT, 0);
    memset(block, 1, bytes[_i]);
    arena_reset(host);
    block = arena_take(host, bytes[_i]); /* of the chunk, which a release leaves in place */
    memset(block, 1, bytes[_i]);
    arena_release(host, block);
    ck_assert(all_poison(block, bytes[_i]));
    arena_free(host);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tests = tcase_create("arena");
    tcase_add_checked_fixture(tests, open_arena, close_arena);
    tcase_add_test(tests, nothing_is_taken_before_it_is_asked_for);
    tcase_add_test(tests, blocks_are_aligned_and_counted_in_whole_units);
    tcase_add_test(tests, a_released_block_serves_the_first_that_fits);
    tcase_add_test(tests, a_shared_block_is_released_with_its_last_owner);
    tcase_add_test(tests, released_neighbours_are_one);
    tcase_add_test(tests, from_the_second_equal_step_on_nothing_is_asked_and_all_addresses_are_equal);
    tcase_add_test(tests, the_chunk_is_as_large_as_the_step_was_with_its_holes);
    tcase_add_test(tests, a_larger_step_takes_only_what_is_missing_and_the_next_one_chunk);
    tcase_add_test(tests, what_is_released_or_reset_is_poisoned);
    tcase_add_test(tests, a_rollback_releases_what_came_after_the_mark);
    tcase_add_test(tests, sizes_that_overflow_are_refused);
    tcase_add_test(tests, without_memory_the_answer_is_null_and_the_arena_goes_on);
    tcase_add_test(tests, where_no_large_chunk_can_be_had_small_ones_serve);
    tcase_add_test(tests, blocks_never_overlap);
    tcase_add_loop_test(tests, host_memory_is_a_source, 0, 3);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
