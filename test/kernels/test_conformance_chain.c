/* Operations one after another, so that a backend's own layouts pass between them, against ref:
 *
 *     x -> conv -> batch norm -> relu -+-> conv -+-> add -> pool -> reshape -> linear
 *                                      +---------+
 *
 * forward and back, with the two gradients of the fork added across layouts. Channels of 1, odd ones, and
 * multiples of every vector's width. An error passes through all links, so the bound is the sum of theirs. On
 * which side of a ReLU a value falls is rounding's choice where it is within 1e-6 of zero; of a few thousand
 * values here none is, and the numbers are the same in every run. */
#include "test/kernels/conformance.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>

enum slot {
    X,
    W1,
    SCALE,
    SHIFT,
    W2,
    W3,
    B3, /* leaves */
    LEAVES,
    CONV1 = LEAVES,
    NORM,
    RELU,
    CONV2,
    SUM,
    POOL,
    FLAT,
    Y,
    SLOTS,
    NONE = SLOTS
};

static const struct link {
    enum op op;
    enum slot in[OP_INPUTS_MAX], out;
} links[] = {
    {OP_CONV2D, {X, W1, NONE}, CONV1}, {OP_BATCH_NORM, {CONV1, SCALE, SHIFT, NONE, NONE}, NORM},
    {OP_RELU, {NORM}, RELU},           {OP_CONV2D, {RELU, W2, NONE}, CONV2},
    {OP_ADD, {CONV2, RELU}, SUM},      {OP_AVG_POOL, {SUM}, POOL},
    {OP_RESHAPE, {POOL}, FLAT},        {OP_LINEAR, {FLAT, W3, B3}, Y},
};
enum { LINKS = sizeof links / sizeof *links };

static const struct chain {
    uint32_t n, c, size, o, classes, stride;
    bool max;  /* a max pool */
    bool relu; /* fused into batch norm and sum; the link between them then changes nothing */
} chains[] = {
    {1, 1, 4, 1, 1, 1, false, false},    {2, 3, 9, 17, 5, 1, true, false},
    {3, 16, 8, 16, 10, 2, false, true},  {2, 3, 8, 64, 30, 2, true, true},
    {4, 33, 6, 7, 3, 1, true, false},    {1, 5, 7, 65, 2, 1, false, true},
    {2, 64, 6, 128, 13, 2, true, false}, {5, 31, 4, 32, 1, 1, false, false},
};
enum { CHAINS = sizeof chains / sizeof *chains };

/* A run on one backend. */
struct run {
    struct backend *backend;
    struct arena *arena;
    struct op_call call[LINKS];
    struct tensor value[SLOTS], gradient[SLOTS], din[LINKS][OP_INPUTS_MAX], mean, variance;
    struct values values[SLOTS], gradients[SLOTS]; /* downloaded */
    double bound;
};

static uint32_t pooled(const struct chain *chain)
{
    return (chain->size - 1) / chain->stride / 2 + 1; // both with padding: rounded up
}

static struct shape leaf_shape(const struct chain *chain, enum slot slot)
{
    const uint32_t o = chain->o, features = o * pooled(chain) * pooled(chain);
    const struct shape shapes[LEAVES] = {
        [X] = SHAPE4(chain->n, chain->c, chain->size, chain->size),
        [W1] = SHAPE4(o, chain->c, 3, 3),
        [SCALE] = SHAPE1(o),
        [SHIFT] = SHAPE1(o),
        [W2] = SHAPE4(o, o, 3, 3),
        [W3] = SHAPE2(chain->classes, features),
        [B3] = SHAPE1(chain->classes),
    };
    return shapes[slot];
}

static struct op_attributes attributes_of(const struct chain *chain, uint32_t link)
{
    const uint32_t stride = links[link].out == CONV1 ? chain->stride : 1;
    const enum slot out = links[link].out;
    if (out == POOL)
        return (struct op_attributes){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    return (struct op_attributes){
        .relu = chain->relu && (out == NORM || out == SUM),
        .training = true,
        .epsilon = 1e-5,
        .stride = {stride, stride},
        .padding = {1, 1},
        .shape = SHAPE2(chain->n, chain->o * pooled(chain) * pooled(chain)),
    };
}

static void must(enum status status, const struct error *error)
{
    ck_assert_msg(status == STATUS_OK, "%s", error->text);
}

static void upload(struct run *run, struct shape shape, uint64_t seed, struct tensor *to)
{
    struct error error = {0};
    struct values values = values_drawn(shape, seed);
    must(values_upload(&values, run->backend, run->arena, "leaf", to, &error), &error);
    values_free(&values);
}

static void forward(struct run *run, const struct chain *chain)
{
    struct error error = {0};
    for (uint32_t slot = 0; slot < LEAVES; slot++)
        upload(run, leaf_shape(chain, slot), 100 + slot, &run->value[slot]);
    for (uint32_t l = 0; l < LINKS; l++) {
        struct op_call *call = &run->call[l];
        *call = (struct op_call){.op = links[l].op == OP_AVG_POOL && chain->max ? OP_MAX_POOL : links[l].op,
                                 .attributes = attributes_of(chain, l),
                                 .arena = run->arena,
                                 .keep = true,
                                 .out = {&run->value[links[l].out]}};
        for (uint32_t i = 0; i < op_rule(call->op)->inputs; i++)
            call->in[i] = links[l].in[i] == NONE ? NULL : &run->value[links[l].in[i]];
        if (call->op == OP_BATCH_NORM) {
            call->out[1] = &run->mean;
            call->out[2] = &run->variance;
        }
        must(op_forward(run->backend, call, &error), &error);
        run->bound += op_bound_output(call);
    }
}

static void backward(struct run *run)
{
    struct error error = {0};
    upload(run, run->value[Y].shape, 200, &run->gradient[Y]);
    for (uint32_t l = LINKS; l-- > 0;) {
        struct op_call *call = &run->call[l];
        call->dout[0] = &run->gradient[links[l].out];
        for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
            if (call->in[i] != NULL)
                call->din[i] = &run->din[l][i];
        must(op_backward(run->backend, call, &error), &error);
        for (uint32_t i = 0; i < OP_INPUTS_MAX; i++) {
            if (call->in[i] == NULL)
                continue;
            struct tensor *sum = &run->gradient[links[l].in[i]];
            run->bound += op_bound_gradient(call, i);
            if (sum->data == NULL)
                *sum = run->din[l][i];
            else
                must(backend_accumulate(run->backend, sum, &run->din[l][i], &error), &error);
        }
    }
}

static void run_chain(struct run *run, const struct chain *chain)
{
    struct error error = {0};
    arena_reset(run->arena);
    forward(run, chain);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        must(values_download(&run->values[slot], run->backend, &run->value[slot], &error), &error);
    backward(run);
    for (uint32_t slot = 0; slot < LEAVES; slot++)
        must(values_download(&run->gradients[slot], run->backend, &run->gradient[slot], &error), &error);
}

static void run_free(struct run *run)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        values_free(&run->values[slot]);
        values_free(&run->gradients[slot]);
    }
}

static bool same_bits(const struct run *a, const struct run *b)
{
    bool same = true;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        same = same && values_equal(&a->values[slot], &b->values[slot]) &&
               values_equal(&a->gradients[slot], &b->gradients[slot]);
    return same;
}

START_TEST(a_chain_agrees_with_ref)
{
    static const char *const name[SLOTS] = {"x",    "w1",   "scale", "shift", "w2",   "w3",   "b3", "conv1",
                                            "norm", "relu", "conv2", "sum",   "pool", "flat", "y"};
    const struct chain *chain = &chains[_i % CHAINS];
    struct conformance pair;
    if (!conformance_open(&pair, (unsigned)_i / CHAINS, _i % CHAINS == 0))
        return;
    struct run expected = {.backend = pair.ref, .arena = pair.ref_arena};
    struct run got = {.backend = pair.backend, .arena = pair.arena}, again = got;
    run_chain(&expected, chain);
    run_chain(&got, chain);
    run_chain(&again, chain);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        char what[64];
        snprintf(what, sizeof what, "chain %d: %s", _i % CHAINS, name[slot]);
        conformance_compare(&pair, what, &expected.values[slot], &got.values[slot], got.bound);
        snprintf(what, sizeof what, "chain %d: gradient of %s", _i % CHAINS, name[slot]);
        conformance_compare(&pair, what, &expected.gradients[slot], &got.gradients[slot], got.bound);
    }
    ck_assert_uint_eq(pair.complaints, 0);
    ck_assert_msg(same_bits(&got, &again), "%s: other bits the second time", pair.name);
    run_free(&expected);
    run_free(&got);
    run_free(&again);
    conformance_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conformance_chain");
    TCase *chain = tcase_create("chains");
    tcase_add_loop_test(chain, a_chain_agrees_with_ref, 0, CONFORMANCE_BACKENDS * CHAINS);
    suite_add_tcase(suite, chain);
    return suite_run(suite);
}
