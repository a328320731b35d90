/* Parameters in the caller's memory: in two halves, in one slot after the other, in memory that cannot be
 * written; layouts that are adopted before the parameters have values; gradients in shared memory; and the
 * fingerprint by which two processes compare the layouts of their slabs. */
#include "kernels/params/gradients.h"
#include "test/kernels/params/reorder.h"
#include "test/kernels/tape/tape_fixture.h"
#include "test/training.h"
#include "test/workplace.h"
#include "worker/model/resnet.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static const struct init zero = {INIT_CONSTANT, 0};

/* Zeros at a multiple of 64 bytes; by free. */
static void *slab_new(size_t bytes)
{
    void *slab = aligned_alloc(64, (bytes + 63) / 64 * 64);
    ck_assert_ptr_nonnull(slab);
    memset(slab, 0, bytes);
    return slab;
}

/* ---- addresses ---- */

enum { ENTRIES = 6 };

/* Two trained entries, a counter and a buffer between them and two more trained ones. */
static void add_entries(struct parameter *entry[ENTRIES])
{
    static const struct {
        const char *name;
        enum parameter_kind kind;
        struct shape shape;
        struct init init;
    } entries[ENTRIES] = {{"a", PARAMETER_TRAINED, SHAPE2(3, 5), {INIT_UNIFORM, 2}},
                          {"b", PARAMETER_TRAINED, SHAPE1(8), {INIT_CONSTANT, 3}},
                          {"mean", PARAMETER_BUFFER, SHAPE1(3), {INIT_CONSTANT, 4}},
                          {"tracked", PARAMETER_COUNTER, SHAPE0(), {INIT_CONSTANT, 5}},
                          {"c", PARAMETER_TRAINED, SHAPE1(21), {INIT_NORMAL, 1}},
                          {"d", PARAMETER_TRAINED, SHAPE0(), {INIT_UNIFORM, 1}}};
    for (int i = 0; i < ENTRIES; i++)
        CK_OK(params_add(fixture.params, entries[i].name, entries[i].kind, entries[i].shape, entries[i].init,
                         &entry[i], &fixture.error));
}

enum { SECOND_HALF = 4, HELD = 64 }; /* the entry with which it begins; doubles that the slab has */

/* The slab that params_build draws for `seed`, of `HELD` doubles. */
static void built_slab(uint64_t seed, double slab[HELD])
{
    struct parameter *entry[ENTRIES];
    fixture_open();
    add_entries(entry);
    fixture_build(seed);
    ck_assert_uint_eq(params_elements(fixture.params), HELD - 8);
    ck_assert_uint_eq(params_buffer_elements(fixture.params), 8);
    memset(slab, 0, HELD * sizeof *slab);
    memcpy(slab, params_slab(fixture.params)->data, (HELD - 8) * sizeof *slab);
    fixture_close();
}

START_TEST(two_halves_begin_as_one)
{
    double expected[HELD];
    double *left = slab_new(sizeof expected), *right = slab_new(sizeof expected), *buffers = slab_new(64);
    struct parameter *entry[ENTRIES];
    built_slab(7, expected);
    fixture_open();
    add_entries(entry);
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    ck_assert_uint_eq(params_elements(fixture.params), HELD - 8);
    ck_assert_ptr_null(params_slab(fixture.params)->data);
    params_place(fixture.params, 0, SECOND_HALF, left);
    params_place(fixture.params, SECOND_HALF, ENTRIES, right);
    params_place_buffers(fixture.params, buffers);
    ck_assert_ptr_null(params_slab(fixture.params)->data); // it is nowhere in one piece
    ck_assert_ptr_eq(entry[2]->tensor.data, buffers);
    const size_t cut = entry[SECOND_HALF]->offset;
    CK_OK(params_begin(fixture.params, 7, SECOND_HALF, ENTRIES, &fixture.error));
    for (size_t i = 0; i < HELD; i++)
        ck_assert(left[i] == 0 && right[i] == (i < cut ? 0 : expected[i]));
    ck_assert_int_eq(entry[3]->counter, 0);
    CK_OK(params_begin(fixture.params, 7, 0, SECOND_HALF, &fixture.error));
    for (size_t i = 0; i < HELD; i++)
        ck_assert(left[i] == (i < cut ? expected[i] : 0));
    ck_assert(buffers[0] == 4 && buffers[2] == 4 && buffers[3] == 0);
    ck_assert_int_eq(entry[3]->counter, 5);
    fixture_close();
    free(left);
    free(right);
    free(buffers);
}
END_TEST

START_TEST(entries_move_from_slot_to_slot)
{
    struct parameter *entry[ENTRIES];
    double *slot[2] = {slab_new(HELD * sizeof(double)), slab_new(HELD * sizeof(double))};
    double values[8];
    fixture_open();
    add_entries(entry);
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    for (int i = 0; i < 2; i++) {
        params_place(fixture.params, 0, ENTRIES, slot[i]);
        ck_assert_ptr_eq(params_slab(fixture.params)->data, slot[i]);
        ck_assert_uint_eq(params_slab(fixture.params)->shape.size[0], HELD - 8);
        CK_OK(params_begin(fixture.params, 1 + (uint64_t)i, 0, 2, &fixture.error));
        slot[i][entry[1]->offset + 7] = i;
    }
    ck_assert(slot[0][0] != slot[1][0]); // drawn by two seeds, each where the entries lay at the time
    for (int i = 0; i < 4; i++) {
        params_place(fixture.params, 0, ENTRIES, slot[i % 2]);
        CK_OK(params_read(fixture.params, entry[1], DTYPE_F64, values, &fixture.error));
        ck_assert(values[0] == 3 && values[7] == i % 2);
        ck_assert_ptr_eq(entry[5]->tensor.data, slot[i % 2] + entry[5]->offset);
    }
    params_displace(fixture.params);
    for (int i = 0; i < ENTRIES; i++)
        ck_assert_ptr_null(entry[i]->tensor.data);
    ck_assert_ptr_null(params_slab(fixture.params)->data);
    fixture_close();
    free(slot[0]);
    free(slot[1]);
}
END_TEST

START_TEST(gradients_lie_where_they_are_placed)
{
    struct parameter *entry[ENTRIES];
    double *place[2] = {slab_new(HELD * sizeof(double)), slab_new(HELD * sizeof(double))};
    bool fresh;
    fixture_open();
    add_entries(entry);
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    CK_OK(gradients_new_unplaced(&fixture.gradients, fixture.params, &fixture.error));
    ck_assert_ptr_null(gradients_slab(fixture.gradients)->data);
    ck_assert_uint_eq(gradients_slab(fixture.gradients)->shape.size[0], HELD - 8);
    for (int i = 0; i < 2; i++) {
        gradients_place(fixture.gradients, place[i]);
        gradients_begin(fixture.gradients);
        struct tensor *part = gradients_take(fixture.gradients, entry[4], &fresh);
        ck_assert_ptr_eq(part->data, place[i] + entry[4]->offset);
        CK_OK(backend_fill(fixture.backend, part, 2 + i, &fixture.error));
        place[i][0] = -1; // of an earlier step
        CK_OK(gradients_complete(fixture.gradients, &fixture.error));
    }
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < HELD; at++) {
            const bool inside = at >= entry[4]->offset && at < entry[4]->offset + 21;
            ck_assert(place[i][at] == (inside ? 2 + i : 0));
        }
    fixture_close();
    free(place[0]);
    free(place[1]);
}
END_TEST

/* ---- a model in training ---- */

enum { BATCH = 3, SIDE = 32, CLASSES = 5, STEPS = 2 };

struct net {
    struct backend *backend;
    struct params *params;
    struct resnet *resnet;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
};

static void net_open(struct net *net)
{
    const struct resnet_config config = {.depth = 18, .channels = 3, .classes = CLASSES, .width = 8};
    struct error error = {0};
    net->backend = training_backend(0);
    training_ok(params_new(&net->params, net->backend, &error), &error);
    training_ok(resnet_new(&net->resnet, &config, net->params, &error), &error);
    training_ok(tape_new(&net->tape, net->backend, &error), &error);
}

static void net_close(struct net *net)
{
    tape_free(net->tape);
    optimizer_free(net->optimizer);
    gradients_free(net->gradients);
    resnet_free(net->resnet);
    params_free(net->params);
    backend_close(net->backend);
}

/* Momentum of its own memory, whatever the params'. */
static void net_optimize(struct net *net)
{
    const struct optimizer_settings sgd = {.kind = OPTIMIZER_SGD, .sgd = {0.01, 0.9}};
    struct error error = {0};
    training_ok(optimizer_new(&net->optimizer, &sgd, net->params, &error), &error);
}

/* A training forward and, where wanted, its walk: on the same images each time. */
static double net_run(struct net *net, bool walk)
{
    static const int32_t labels[BATCH] = {0, 3, 4};
    struct error error = {0};
    uint64_t state = 11;
    double loss = 0;
    float *numbers = training_numbers(&state, (size_t)BATCH * 3 * SIDE * SIDE, 1);
    tape_begin(net->tape, TAPE_TRAIN, net->gradients);
    struct variable *images =
        tape_input(net->tape, SHAPE4(BATCH, 3, SIDE, SIDE), DTYPE_F32, "images", numbers);
    struct variable *logits = resnet_forward(net->resnet, net->tape, images, true);
    struct variable *labels_in = tape_input(net->tape, SHAPE1(BATCH), DTYPE_I32, "labels", labels);
    struct variable *mean = tape_cross_entropy(net->tape, logits, labels_in);
    if (walk) {
        tape_backward(net->tape, mean);
        tape_read(net->tape, mean, DTYPE_F64, &loss);
    }
    training_ok(tape_finish(net->tape, &error), &error);
    free(numbers);
    return loss;
}

static void net_step(struct net *net)
{
    struct error error = {0};
    net_run(net, true);
    training_ok(optimizer_step(net->optimizer, net->gradients, &error), &error);
}

/* A forward on zeros that cost no memory, as a trainer begins: the entries then know their layouts. */
static void net_adopt(struct net *net)
{
    struct error error = {0};
    training_ok(params_lay_out(net->params, &error), &error);
    training_ok(gradients_new_unplaced(&net->gradients, net->params, &error), &error);
    const size_t bytes = params_elements(net->params) * sizeof(float);
    void *nothing = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(nothing, MAP_FAILED);
    params_place(net->params, 0, params_count(net->params), nothing);
    params_place_buffers(net->params, nothing); // fewer, and not read in training
    net_run(net, false);
    params_adopt(net->params);
    munmap(nothing, bytes);
}

static uint32_t laid_out(const struct net *net)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < params_count(net->params); i++)
        count += params_at(net->params, i)->tensor.layout != NULL;
    return count;
}

/* One model that is reordered after a forward, and one that adopts before it has memory and then lies in two
 * slots in turn: the same bits in all that a step leaves. */
START_TEST(adopted_layouts_are_reordered_ones)
{
    struct net reordered = {0}, placed = {0};
    struct error error = {0};
    net_open(&reordered);
    training_ok(params_build(reordered.params, 3, &error), &error);
    training_ok(gradients_new(&reordered.gradients, reordered.params, &error), &error);
    net_optimize(&reordered);
    const uint64_t canonical = params_fingerprint(reordered.params);
    net_run(&reordered, false);
    reorder_params(reordered.params, &reordered.gradients, 1);
    net_open(&placed);
    net_adopt(&placed);
    ck_assert_uint_gt(laid_out(&placed), 10);
    ck_assert_uint_eq(laid_out(&placed), laid_out(&reordered));
    ck_assert_uint_ne(params_fingerprint(placed.params), canonical);
    ck_assert_uint_eq(params_fingerprint(placed.params), params_fingerprint(reordered.params));
    net_optimize(&placed);
    const uint32_t count = params_count(placed.params);
    const size_t bytes = params_elements(placed.params) * sizeof(float);
    void *slot[2] = {slab_new(bytes), slab_new(bytes)}, *outbox = slab_new(bytes),
         *buffers = slab_new(params_buffer_elements(placed.params) * sizeof(float));
    params_place(placed.params, 0, count, slot[0]);
    params_place_buffers(placed.params, buffers);
    gradients_place(placed.gradients, outbox);
    training_ok(params_begin(placed.params, 3, 0, count, &error), &error);
    for (int step = 0; step < STEPS; step++) {
        memcpy(slot[1 - step % 2], slot[step % 2], bytes);
        memset(slot[step % 2], 0xff, bytes); // NaN where nobody should look any more
        params_place(placed.params, 0, count, slot[1 - step % 2]);
        net_step(&placed);
        net_step(&reordered);
        ck_assert_mem_eq(outbox, gradients_slab(reordered.gradients)->data, bytes);
        ck_assert_mem_eq(slot[1 - step % 2], params_slab(reordered.params)->data, bytes);
    }
    net_close(&placed);
    net_close(&reordered);
    free(slot[0]);
    free(slot[1]);
    free(outbox);
    free(buffers);
}
END_TEST

/* A mapping that faults when it is written to is enough to compute with. */
START_TEST(a_step_reads_its_parameters_only)
{
    struct net net = {0};
    struct error error = {0};
    net_open(&net);
    net_adopt(&net);
    const uint32_t count = params_count(net.params);
    const size_t elements = params_elements(net.params), bytes = elements * sizeof(float),
                 buffer_bytes = params_buffer_elements(net.params) * sizeof(float);
    char *image =
        mmap(NULL, bytes + buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(image, MAP_FAILED);
    float *outbox = slab_new(bytes);
    params_place(net.params, 0, count / 2, image);
    params_place(net.params, count / 2, count, image);
    params_place_buffers(net.params, image + bytes);
    training_ok(params_begin(net.params, 3, 0, count, &error), &error);
    ck_assert_int_eq(mprotect(image, bytes + buffer_bytes, PROT_READ), 0);
    gradients_place(net.gradients, outbox);
    const double loss = net_run(&net, true);
    ck_assert_msg(loss > 0.5 && loss < 10, "loss %g", loss);
    training_ok(gradients_check(net.gradients, &error), &error);
    net_close(&net);
    munmap(image, bytes + buffer_bytes);
    free(outbox);
}
END_TEST

/* ---- fingerprints ---- */

/* Of params with these entries, in an order by `turn`. */
static uint64_t fingerprint(const char *name, enum parameter_kind kind, struct shape shape, bool turn)
{
    struct parameter *parameter = NULL;
    fixture_open();
    for (int i = 0; i < 2; i++) {
        const bool given = (i == 0) != turn;
        CK_OK(params_add(fixture.params, given ? name : "fixed", given ? kind : PARAMETER_TRAINED,
                         given ? shape : SHAPE1(4), zero, &parameter, &fixture.error));
    }
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    const uint64_t found = params_fingerprint(fixture.params);
    fixture_close();
    return found;
}

START_TEST(a_fingerprint_tells_models_apart)
{
    const uint64_t one = fingerprint("w", PARAMETER_TRAINED, SHAPE2(2, 3), false);
    ck_assert_uint_eq(one, fingerprint("w", PARAMETER_TRAINED, SHAPE2(2, 3), false));
    ck_assert_uint_ne(one, fingerprint("v", PARAMETER_TRAINED, SHAPE2(2, 3), false));
    ck_assert_uint_ne(one, fingerprint("w", PARAMETER_BUFFER, SHAPE2(2, 3), false));
    ck_assert_uint_ne(one, fingerprint("w", PARAMETER_TRAINED, SHAPE2(3, 2), false));
    ck_assert_uint_ne(one, fingerprint("w", PARAMETER_TRAINED, SHAPE1(6), false));
    ck_assert_uint_ne(one, fingerprint("w", PARAMETER_TRAINED, SHAPE2(2, 3), true));
}
END_TEST

/* The number is the header's algorithm in another language. */
START_TEST(a_fingerprint_is_the_headers)
{
    struct parameter *parameter = NULL;
    fixture_open();
    static const struct {
        const char *name;
        enum parameter_kind kind;
        struct shape shape;
    } entries[] = {{"conv1.weight", PARAMETER_TRAINED, SHAPE4(64, 3, 7, 7)},
                   {"bn1.running_mean", PARAMETER_BUFFER, SHAPE1(64)},
                   {"bn1.num_batches_tracked", PARAMETER_COUNTER, SHAPE0()},
                   {"fc.bias", PARAMETER_TRAINED, SHAPE1(30)}};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        CK_OK(params_add(fixture.params, entries[i].name, entries[i].kind, entries[i].shape, zero, &parameter,
                         &fixture.error));
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    ck_assert_uint_eq(params_fingerprint(fixture.params), UINT64_C(0xf542b526c941ed19));
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("params_place");
    TCase *addresses = tcase_create("addresses");
    tcase_add_test(addresses, two_halves_begin_as_one);
    tcase_add_test(addresses, entries_move_from_slot_to_slot);
    tcase_add_test(addresses, gradients_lie_where_they_are_placed);
    suite_add_tcase(suite, addresses);
    TCase *model = tcase_create("model");
    tcase_add_test(model, adopted_layouts_are_reordered_ones);
    tcase_add_test(model, a_step_reads_its_parameters_only);
    suite_add_tcase(suite, model);
    TCase *prints = tcase_create("fingerprints");
    tcase_add_test(prints, a_fingerprint_tells_models_apart);
    tcase_add_test(prints, a_fingerprint_is_the_headers);
    suite_add_tcase(suite, prints);
    return suite_run(suite);
}
