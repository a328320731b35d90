/* worker/net/PROTOCOL.md held against the parameter server: a trainer written from that page alone trains
 * with the real server, whose answers are those of the page. */
#include "test/worker/data/data_fixture.h"
#include "test/worker/data_parallel/page_servers.h"
#include "test/workplace.h"

#include <math.h>

enum { UPDATES = 3, WELCOME_PROOF_BYTES = 32 };

/* What the model must be, in double. */
struct expected {
    double *values, *velocity;
};

static struct page_peer peers[PAGE_SERVERS_MAX];
static unsigned servers;

/* Server j's ranges: its trained elements; the statistics besides when it is server 0. */
static void ranges_of(unsigned server, size_t first[2], size_t end[2])
{
    const struct page_model *model = &page.model;
    first[0] = page_cut(model, server, servers);
    end[0] = page_cut(model, server + 1, servers);
    first[1] = model->p;
    end[1] = server == 0 ? model->p + model->b : model->p;
}

static void pull(uint64_t version, float *image)
{
    size_t first[2], end[2];
    for (unsigned j = 0; j < servers; j++) {
        ranges_of(j, first, end);
        for (unsigned r = 0; r < 2; r++)
            page_pull(&peers[j], &page.model, version, first[r], end[r], image, &page.message);
    }
}

static void push(uint64_t step, const float *image)
{
    size_t first[2], end[2];
    for (unsigned j = 0; j < servers; j++) {
        ranges_of(j, first, end);
        for (unsigned r = 0; r < 2; r++)
            page_push(&peers[j], step, first[r], end[r], image, &page.message);
    }
}

/* A contribution with another number in every element that is an entry's, zeros in the gaps. */
static void contribute(uint64_t step, float *image)
{
    memset(image, 0, (page.model.p + page.model.b) * sizeof *image);
    for (uint32_t i = 0; i < page.model.count; i++) {
        const struct page_entry *entry = &page.model.entries[i];
        for (size_t c = 0; entry->kind < 2 && c < entry->count; c++)
            image[entry->at + c] = (float)((entry->at + c) * 7 % 1000 + 100 * step) / 1000.0f;
    }
}

static void move(struct expected *expected, const float *contribution)
{
    for (size_t i = 0; i < page.model.p; i++) {
        expected->velocity[i] = 0.9 * expected->velocity[i] + (double)contribution[i];
        expected->values[i] -= 0.1 * expected->velocity[i];
    }
    for (size_t i = page.model.p; i < page.model.p + page.model.b; i++)
        expected->values[i] = 0.9 * expected->values[i] + 0.1 * (double)contribution[i];
}

static void expect_model(const struct expected *expected, const float *image)
{
    for (uint32_t i = 0; i < page.model.count; i++) {
        const struct page_entry *entry = &page.model.entries[i];
        const size_t end = (entry->count + 15) / 16 * 16; /* with the gap behind it */
        for (size_t c = 0; entry->kind < 2 && c < end; c++) {
            const double wanted = expected->values[entry->at + c], got = (double)image[entry->at + c];
            if (fabs(got - wanted) > 1e-6 || (c >= entry->count && got != 0))
                ck_abort_msg("%s, element %zu of %zu: %.9g, expected %.9g", entry->name, c, entry->count, got,
                             wanted);
        }
    }
}

/* How entries begin tells whether they lie where the page says. */
static void expect_begin(const float *image)
{
    for (uint32_t i = 0; i < page.model.count; i++) {
        const struct page_entry *entry = &page.model.entries[i];
        const char *dot = strrchr(entry->name, '.');
        const bool is_norm = entry->rank == 1 && strcmp(entry->name, "fc.bias") != 0;
        const float wanted = strcmp(dot, ".weight") == 0 || strcmp(dot, ".running_var") == 0 ? 1 : 0;
        for (size_t c = 0; is_norm && c < entry->count; c++)
            if (image[entry->at + c] != wanted)
                ck_abort_msg("%s, element %zu: %g, expected %g", entry->name, c, (double)image[entry->at + c],
                             (double)wanted);
    }
}

static void expect_place(uint64_t version, uint64_t step, uint64_t flags)
{
    ck_assert_uint_eq(page.message.args[0], version);
    ck_assert_uint_eq(page.message.args[1], UINT64_MAX);
    ck_assert_uint_eq(page.message.args[2], step);
    ck_assert_uint_eq(page.message.args[3], flags);
    ck_assert_uint_eq(page.message.count, 0);
}

static void join_all(void)
{
    for (unsigned j = 0; j < servers; j++) {
        page_open(&peers[j], page.addresses[j], (uint16_t)servers, (uint16_t)j, 1);
        page_join(&peers[j], &page.message);
        ck_assert_ptr_nonnull(strstr((const char *)page.message.floats + WELCOME_PROOF_BYTES, "\"inline\""));
        page_ask(&peers[j], PAGE_GET_MODEL, PAGE_NEWEST, 0, 0, page.model.fingerprint, NULL, 0);
        page_value(&peers[j], &page.message);
        expect_place(0, 0, 0);
    }
}

static void teardown(void)
{
    for (unsigned j = 0; j < servers; j++)
        page_close(&peers[j]);
    page_close_folder();
}

/* ---- a job ---- */

START_TEST(a_trainer_written_from_the_page_trains)
{
    const size_t elements = page.model.p + page.model.b;
    float *image = calloc(elements, sizeof *image);
    struct expected expected = {calloc(elements, sizeof(double)), calloc(elements, sizeof(double))};
    servers = (unsigned)_i;
    page_serve(servers, 1, "\"stop\":{\"updates\":3}");
    join_all();
    pull(0, image);
    expect_begin(image);
    for (size_t i = 0; i < elements; i++)
        expected.values[i] = (double)image[i];
    for (uint64_t step = 0; step < UPDATES; step++) {
        contribute(step, image);
        push(step, image);
        move(&expected, image);
        for (unsigned j = 0; j < servers; j++)
            page_push_pull(&peers[j], &page.model, step, step, 0.5 + (double)step);
        page_updated(step + 1); /* the last one is saved before its answer, and the log comes before that */
        ck_assert(page.servers[0].message.body.update.loss == 0.5 + (double)step);
        for (unsigned j = 0; j < servers; j++) {
            page_value(&peers[j], &page.message);
            expect_place(step + 1, step + 1, step + 1 == UPDATES ? 2 : 0);
        }
        pull(step + 1, image);
        expect_model(&expected, image);
    }
    push(UPDATES, image);
    page_push_pull(&peers[0], &page.model, UPDATES, UPDATES, 1);
    page_expect(&peers[0], &page.message, PAGE_REPLY, 7, "last update");
    bare_worker_expect(&page.servers[0], CONTROL_FINISHED);
    for (unsigned j = servers; j-- > 0;) {
        bare_worker_order(&page.servers[j], CONTROL_EXIT);
        page_expect(&peers[j], &page.message, PAGE_BYE, 0, "");
        ck_assert_int_eq(bare_worker_wait(&page.servers[j]), 0);
    }
    free(image);
    free(expected.values);
    free(expected.velocity);
}
END_TEST

/* ---- an evaluation ---- */

/* It comes before the answer that gives the trainer its version, which can be read by its number then. */
START_TEST(an_evaluation_is_answered)
{
    char more[256];
    const size_t elements = page.model.p + page.model.b;
    float *image = calloc(elements, sizeof *image);
    const double loss = 11.25;
    uint64_t bits;
    servers = 1;
    data_open();
    idx_write(2, 7);
    snprintf(more, sizeof more,
             "\"data\":{\"kind\":\"idx\",\"path\":\"%s\",\"size\":4},\"evaluation\":{\"every\":1},"
             "\"stop\":{\"epochs\":1}",
             data.folder);
    page_serve(1, 1, more);
    join_all();
    contribute(0, image);
    push(0, image);
    page_push_pull(&peers[0], &page.model, 0, 0, 1.5);
    page_updated(1);
    page_expect(&peers[0], &page.message, PAGE_REQUEST, 0, "");
    ck_assert_uint_eq(page.message.method, PAGE_EVALUATE);
    ck_assert_uint_eq(page.message.args[0], 1);
    ck_assert_uint_eq(page.message.args[1], UINT64_MAX);
    ck_assert_uint_eq(page.message.args[2], 0);
    ck_assert_uint_eq(page.message.args[3], 1);
    struct page_message *request = malloc(sizeof *request);
    memcpy(request, &page.message, sizeof *request);
    page_expect(&peers[0], &page.message, PAGE_REPLY, 0, "");
    expect_place(1, 1, 2);
    pull(1, image);
    memcpy(&bits, &loss, sizeof bits);
    page_answer(&peers[0], request, bits, 3, 7);
    bare_worker_expect(&page.servers[0], CONTROL_EPOCH);
    bare_worker_logged(&page.servers[0], 2);
    const struct control_epoch *epoch = &page.servers[0].message.body.epoch;
    ck_assert_uint_eq(epoch->correct, 3);
    ck_assert_uint_eq(epoch->evaluated, 7);
    ck_assert(epoch->evaluation_loss == loss / 7);
    bare_worker_expect(&page.servers[0], CONTROL_FINISHED);
    free(request);
    free(image);
    data_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol_trainer");
    TCase *tcase = tcase_create("page");
    tcase_add_checked_fixture(tcase, page_open_folder, teardown);
    tcase_add_loop_test(tcase, a_trainer_written_from_the_page_trains, 1, PAGE_SERVERS_MAX + 1);
    tcase_add_test(tcase, an_evaluation_is_answered);
    tcase_set_timeout(tcase, 100);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
