/* How a backend is held to ref, row by row of the table: every form of a call (into given memory, inference,
 * each set of gradients, a second time) and its bits. Linked into the conformance tests. */
#include "test/kernels/conformance.h"

#include "test/oracle/ref.h"

#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Instruction sets: the library's name of the one that it may use at most, and ours. NULL: the best. */
static const struct {
    const char *name, *plugin;
    uint32_t threads;
    const char *library_isa, *isa;
} backends[CONFORMANCE_BACKENDS] = {
    {"ref", NULL, 0, NULL, NULL},
    {"onednn, 1 thread", "onednn", 1, NULL, NULL},
    {"onednn, 2 threads", "onednn", 2, NULL, NULL},
    {"onednn, AVX2", "onednn", 1, "AVX2", "avx2"},
    {"onednn, SSE4.1", "onednn", 1, "SSE41", "baseline"},
    {"cuda", "cuda", 0, NULL, NULL},
};

static void open_ref(struct conformance *pair)
{
    struct error error = {0};
    ck_assert_msg(backend_open(&pair->ref, &ref_ops, &(struct backend_settings){0}, &error) == STATUS_OK,
                  "ref: %s", error.text);
    ck_assert_int_eq(arena_new(&pair->ref_arena, &pair->ref->source, &error), STATUS_OK);
    ck_assert_int_eq(arena_new(&pair->arena, &pair->backend->source, &error), STATUS_OK);
}

static void pair_named(struct conformance *pair, const char *name)
{
    *pair = (struct conformance){0};
    snprintf(pair->name, sizeof pair->name, "%s", name);
}

bool conformance_open(struct conformance *pair, unsigned number, bool announce)
{
    const char *plugin = backends[number].plugin, *isa = backends[number].isa;
    const char *only = getenv("TEST_BACKEND");
    struct error error = {0};
    if (only != NULL && (plugin == NULL || strcmp(plugin, only) != 0))
        return false;
    if (plugin == NULL) {
        conformance_open_ops(pair, backends[number].name, &ref_ops);
        return true;
    }
    pair_named(pair, backends[number].name);
    setenv("OMP_WAIT_POLICY", "passive",
           0); // a thread that spins takes the processor of the one it waits for
    if (isa != NULL) {
        setenv("DNNL_MAX_CPU_ISA", backends[number].library_isa, 1);
        setenv("COALESCED_ISA", isa, 1);
    }
    const struct backend_settings settings = {.threads = backends[number].threads};
    enum status status = backend_load(&pair->backend, plugin, &settings, &error);
    const bool may_lack = isa != NULL
                              ? status == STATUS_INVALID && !__builtin_cpu_supports("avx2")
                              : status == STATUS_UNAVAILABLE && strcmp(plugin, "cuda") == 0 && only == NULL;
    if (may_lack) {
        if (announce)
            printf("%s is not checked: %s\n", pair->name, error.text);
        return false;
    }
    ck_assert_msg(status == STATUS_OK, "%s: %s", pair->name, error.text);
    open_ref(pair);
    return true;
}

void conformance_open_ops(struct conformance *pair, const char *name, const struct backend_ops *ops)
{
    struct error error = {0};
    pair_named(pair, name);
    ck_assert_msg(backend_open(&pair->backend, ops, &(struct backend_settings){0}, &error) == STATUS_OK,
                  "%s: %s", name, error.text);
    open_ref(pair);
}

void conformance_close(struct conformance *pair)
{
    arena_free(pair->arena);
    arena_free(pair->ref_arena);
    backend_close(pair->backend);
    backend_close(pair->ref);
}

void conformance_complain(struct conformance *pair, const char *format, ...)
{
    va_list arguments;
    pair->complaints++;
    if (pair->quiet)
        return;
    printf("%s: ", pair->name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

static double number_at(const struct values *values, size_t i)
{
    if (i >= values->count)
        return (double)NAN;
    return values->dtype == DTYPE_I32 ? (double)values->whole[i] : values->real[i];
}

void conformance_compare(struct conformance *pair, const char *what, const struct values *expected,
                         const struct values *got, double bound)
{
    size_t at = 0;
    double deviation = values_deviation(expected, got, &at);
    if (!(deviation <= bound))
        conformance_complain(pair,
                             "%s: deviates by %.2g of the largest, bound %.2g; element %zu is %.9g, not %.9g",
                             what, deviation, bound, at, number_at(got, at), number_at(expected, at));
}

/* ---- one row of the table ---- */

enum { WHAT_BYTES = OP_CASE_TEXT_BYTES + 80 };

struct row {
    struct conformance *pair;
    struct op_problem problem;
    char text[OP_CASE_TEXT_BYTES];
};

static void compare_answers(struct row *row, const char *how, const struct op_answer *expected,
                            const struct op_answer *got)
{
    const struct op_rule *rule = op_rule(row->problem.op_case->op);
    char what[WHAT_BYTES];
    for (uint32_t i = 0; i < rule->outputs; i++) {
        snprintf(what, sizeof what, "%s: %s%s", row->text, rule->out[i].name, how);
        conformance_compare(row->pair, what, &expected->out[i], &got->out[i], expected->out_bound);
    }
    for (uint32_t i = 0; i < rule->inputs; i++) {
        snprintf(what, sizeof what, "%s: gradient of %s%s", row->text, rule->in[i].name, how);
        if (got->din[i].count != 0)
            conformance_compare(row->pair, what, &expected->din[i], &got->din[i], expected->din_bound[i]);
    }
}

static bool run(struct row *row, const char *how, const struct op_wish *wish, struct op_answer *answer)
{
    struct error error = {0};
    if (op_run(answer, &row->problem, wish, row->pair->backend, row->pair->arena, &error) == STATUS_OK)
        return true;
    conformance_complain(row->pair, "%s%s: %s", row->text, how, error.text);
    return false;
}

static void run_and_compare(struct row *row, const char *how, const struct op_wish *wish,
                            const struct op_answer *expected)
{
    struct op_answer answer = {0};
    if (run(row, how, wish, &answer))
        compare_answers(row, how, expected, &answer);
    op_answer_fini(&answer);
}

/* The second time without what the backward does not read. */
static void run_twice(struct row *row, const struct op_wish *wish, const struct op_answer *expected)
{
    struct op_answer first = {0}, second = {0};
    struct op_wish again = *wish;
    again.forget = true;
    if (run(row, "", wish, &first) && run(row, ", again", &again, &second)) {
        bool same = true;
        compare_answers(row, "", expected, &first);
        for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
            same = same && values_equal(&first.out[i], &second.out[i]);
        for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
            same = same && values_equal(&first.din[i], &second.din[i]);
        if (!same)
            conformance_complain(row->pair, "%s: other bits the second time", row->text);
    }
    op_answer_fini(&first);
    op_answer_fini(&second);
}

/* Every set of wanted gradients, from all output gradients. */
static void run_gradient_subsets(struct row *row, const struct op_wish *all, const struct op_answer *expected)
{
    for (uint32_t din = all->din; din != 0; din = (din - 1) & all->din) {
        char how[48];
        snprintf(how, sizeof how, ", gradients %#x wanted", din);
        run_and_compare(row, how, &(struct op_wish){.din = din, .dout = all->dout}, expected);
    }
}

/* Every set of output gradients that are there: what is absent counts as zero. */
static void run_output_subsets(struct row *row, const struct op_wish *all)
{
    struct op_answer expected = {0};
    struct error error = {0};
    for (uint32_t dout = (all->dout - 1) & all->dout; dout != 0; dout = (dout - 1) & all->dout) {
        const struct op_wish wish = {.din = all->din, .dout = dout};
        char how[48];
        snprintf(how, sizeof how, ", output gradients %#x given", dout);
        ck_assert_msg(op_run(&expected, &row->problem, &wish, row->pair->ref, row->pair->ref_arena, &error) ==
                          STATUS_OK,
                      "ref: %s", error.text);
        run_and_compare(row, how, &wish, &expected);
    }
    op_answer_fini(&expected);
}

static void run_variants(struct row *row, const struct op_wish *all, const struct op_answer *expected)
{
    struct op_wish preset = *all;
    preset.preset = true;
    run_and_compare(row, ", into given memory", &preset, expected);
    run_and_compare(row, ", inference", &(struct op_wish){.inference = true}, expected);
    if ((row->problem.op_case->use & OP_CASE_DIFFER) != 0 && all->din != 0) {
        run_gradient_subsets(row, all, expected);
        run_output_subsets(row, all);
    }
}

void conformance_case(struct conformance *pair, const struct op_case *op_case)
{
    struct row row = {.pair = pair};
    struct op_answer expected = {0};
    struct error error = {0};
    const unsigned before = pair->complaints;
    op_case_text(op_case, row.text);
    op_problem_init(&row.problem, op_case, pair->ref);
    const struct op_wish wish = op_wish_all(&row.problem);
    ck_assert_msg(op_run(&expected, &row.problem, &wish, pair->ref, pair->ref_arena, &error) == STATUS_OK,
                  "ref: %s", error.text);
    run_twice(&row, &wish, &expected);
    if (pair->complaints == before) // the rest would say the same again
        run_variants(&row, &wish, &expected);
    op_answer_fini(&expected);
    op_problem_fini(&row.problem);
}
