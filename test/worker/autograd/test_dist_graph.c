/* Random graphs of calls over three workers against the same graph on one: loss, gradients of all parameters
 * and of the root's inputs, bit for bit, whatever the placement, with shared memory and without. */
#include "kernels/params/gradients.h"
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"

#include <math.h>

enum {
    GRAPH_WORKERS = 3,
    TABLES = 1,
    KNOTS = 5,
    OBJECTS = TABLES + KNOTS,
    CALLS = 12,
    LEVELS = 2,
    LARGE_ROWS = 4100
};
enum { VALUES_MAX = 40000 };

/* What a graph has computed. */
struct outcome {
    double loss;
    uint32_t count; // of gradients
    double gradient[VALUES_MAX];
};

static struct outcome expected, got;

static void add_values(struct outcome *outcome, const double *values, size_t count)
{
    ck_assert_uint_le(outcome->count + count, VALUES_MAX);
    memcpy(outcome->gradient + outcome->count, values, count * sizeof *values);
    outcome->count += (uint32_t)count;
}

static void add_input(struct outcome *outcome, struct tape *tape, const struct variable *variable)
{
    static double values[VALUES_MAX];
    const struct tensor *gradient = variable_gradient(variable);
    const size_t count = shape_elements(&variable_tensor(variable)->shape);
    memset(values, 0, count * sizeof values[0]);
    if (gradient != NULL)
        CK_DIST(backend_download(tape_backend(tape), gradient, DTYPE_F64, values, &stage.error));
    add_values(outcome, values, count);
}

/* The gradients of all objects, wherever they are. */
static void add_objects(struct outcome *outcome, uint64_t context)
{
    for (unsigned name = 0; name < OBJECTS; name++)
        for (unsigned w = 0; w < GRAPH_WORKERS; w++) {
            struct knot *knot = rref_local(stage.sides[w].object[name]);
            struct gradients *gradients = NULL;
            double values[TABLE_ROWS * WIDTH + WIDTH] = {0};
            if (knot == NULL)
                continue;
            const size_t weights = shape_elements(&knot->weight->tensor.shape);
            const enum status status =
                dist_gradients(stage.sides[w].dist, context, knot, &gradients, &stage.error);
            ck_assert(status == STATUS_OK || status == STATUS_NOT_FOUND);
            if (gradients != NULL) {
                CK_DIST(gradients_read(gradients, knot->weight, DTYPE_F64, values, &stage.error));
                CK_DIST(gradients_read(gradients, knot->bias, DTYPE_F64, values + weights, &stage.error));
            }
            add_values(outcome, values, weights + WIDTH);
        }
}

/* The root's part: rows of tables and maps, of two inputs and of what is there so far, and a sum of some. */
static void record(struct dist_context *context, struct tape *tape, unsigned root, uint64_t seed,
                   uint32_t rows, struct variable *input[2], struct variable **loss)
{
    struct variable *there[2 + 2 * CALLS], *sum = NULL;
    unsigned count = 0;
    float *values = malloc((size_t)rows * WIDTH * sizeof *values);
    for (unsigned i = 0; i < 2; i++) {
        for (uint32_t v = 0; v < rows * WIDTH; v++)
            values[v] = (float)(mix(seed + i, v) % 1000) / 500 - 1;
        input[i] = there[count++] = tape_input(tape, SHAPE2(rows, WIDTH), DTYPE_F32, "x", values);
        if (i == 0)
            tape_want_gradient(input[i]);
    }
    free(values);
    for (unsigned i = 0; i < CALLS; i++) {
        const uint64_t draw = mix(seed, 50 + i), numbers[2] = {draw, draw / 1024 % (LEVELS + 1)};
        struct variable *in[2] = {there[draw % count], draw % 7 < 3 ? there[draw / 8 % count] : NULL};
        if (draw / 32 % 5 < 2) {
            in[0] = table_rows(tape, input[0], draw);
            dist_call(context, stage.sides[root].object[draw / 64 % TABLES], 0, NULL, 0, in, 1,
                      &there[count++], 1);
            continue;
        }
        dist_call(context, stage.sides[root].object[TABLES + draw / 64 % KNOTS], KNOT_GRAPH, numbers, 2, in,
                  2, &there[count], 2);
        count += 2;
    }
    for (unsigned i = 0; i < count; i++)
        if (i == count - 1 || mix(seed, 200 + i) % 3 != 0)
            sum = sum == NULL ? there[i] : tape_add(tape, sum, there[i], false);
    *loss = tape_sum(tape, sum, NULL, 0.125);
}

static void compute(struct outcome *outcome, unsigned root, uint64_t seed, uint32_t rows)
{
    struct tape *tape = dist_tape(root);
    struct dist_context *context = dist_begin(root, tape);
    struct variable *input[2], *loss;
    outcome->count = 0;
    record(context, tape, root, seed, rows, input, &loss);
    CK_DIST(tape_status(tape, &stage.error));
    CK_DIST(tape_loss(tape, loss, &outcome->loss));
    CK_DIST(dist_backward(context, loss, &stage.error));
    add_input(outcome, tape, input[0]);
    for (unsigned i = 0; i < 20; i++) // what was dropped
        dist_turns(1);
    add_objects(outcome, dist_context_id(context));
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
}

/* place(name): the worker of each object. */
static void run(struct outcome *outcome, const struct backend_ops *ops, bool shared, uint64_t placement,
                unsigned root, uint64_t seed, uint32_t rows)
{
    dist_start(ops, shared, GRAPH_WORKERS);
    for (unsigned name = 0; name < OBJECTS; name++)
        dist_object(placement == 0 ? 0 : mix(placement, name) % GRAPH_WORKERS,
                    name < TABLES ? "table" : "knot", name);
    compute(outcome, root, seed, rows);
    dist_end();
}

static uint64_t bits(double value)
{
    uint64_t all;
    memcpy(&all, &value, sizeof all);
    return all;
}

static void expect_equal(const char *what)
{
    ck_assert_msg(bits(expected.loss) == bits(got.loss), "%s: loss %.17g, expected %.17g", what, got.loss,
                  expected.loss);
    ck_assert_uint_eq(expected.count, got.count);
    bool some = false;
    for (uint32_t i = 0; i < got.count; i++) {
        ck_assert_msg(bits(expected.gradient[i]) == bits(got.gradient[i]),
                      "%s: gradient %u is %.17g, expected %.17g", what, i, got.gradient[i],
                      expected.gradient[i]);
        ck_assert(isfinite(got.gradient[i]));
        some = some || got.gradient[i] != 0;
    }
    ck_assert(some);
}

/* The sanitizers take ten times as long for a graph, and see enough in one of each kind. */
static bool is_sanitized(void)
{
    const char *sanitizer = getenv("SAN");
    return sanitizer != NULL && *sanitizer != '\0';
}

static uint64_t graphs_count(void)
{
    return is_sanitized() ? 1 : 3;
}

static void compare(const struct backend_ops *ops, uint64_t seed, uint32_t rows)
{
    char what[96];
    run(&expected, ops, false, 0, 0, seed, rows);
    for (unsigned i = is_sanitized() ? 2 : 0; i < 4; i++) {
        const bool shared = i & 1;
        const uint64_t placement = i < 1 ? 0 : seed * 8 + i;
        const unsigned root = i == 3 ? (unsigned)(seed % GRAPH_WORKERS) : 0;
        snprintf(what, sizeof what, "seed %u, placement %u, root %u, %s", (unsigned)seed, i, root,
                 shared ? "shared" : "inline");
        run(&got, ops, shared || i == 0, placement, root, seed, rows);
        expect_equal(what);
    }
}

START_TEST(a_graph_over_workers_has_the_bits_of_one_worker)
{
    for (uint64_t seed = 1; seed <= graphs_count(); seed++)
        compare(&ref_ops, seed * 10 + (uint64_t)_i, 3);
}
END_TEST

/* In the arithmetic of jobs, whose tensors are used where they lie. */
START_TEST(so_it_has_on_the_cpu)
{
    for (uint64_t seed = 1; seed <= graphs_count(); seed++)
        compare(NULL, seed * 10 + (uint64_t)_i, 3);
}
END_TEST

/* Tensors of more than 64 KiB: lent, or in pieces. */
START_TEST(so_it_has_with_large_tensors)
{
    compare(_i % 2 == 0 ? &ref_ops : NULL, 1000 + (uint64_t)_i, LARGE_ROWS);
}
END_TEST

/* A device's double: the oracle's arithmetic, in memory that nobody may look into. */
START_TEST(so_it_has_on_a_device)
{
    struct backend_ops aloof = ref_ops;
    aloof.host = false;
    compare(&aloof, 2000, 3);
    compare(&aloof, 2001, LARGE_ROWS);
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_graph");
    TCase *graphs = tcase_create("graphs");
    tcase_set_timeout(graphs, 120);
    tcase_add_loop_test(graphs, a_graph_over_workers_has_the_bits_of_one_worker, 0, 4);
    tcase_add_loop_test(graphs, so_it_has_on_the_cpu, 0, 2);
    tcase_add_loop_test(graphs, so_it_has_with_large_tensors, 0, 2);
    tcase_add_test(graphs, so_it_has_on_a_device);
    suite_add_tcase(suite, graphs);
    return suite_run(suite);
}
