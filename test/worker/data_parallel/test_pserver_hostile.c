/* A parameter server and trainers that break every rule of PROTOCOL.md, in bytes: each loses its session
 * and gets the reason; the other trainers and the server go on. Wrong numbers of well-formed calls under
 * every transport: test_pserver.c. */
#include "test/worker/data/data_fixture.h"
#include "test/worker/data_parallel/page_servers.h"
#include "test/workplace.h"

#include <math.h>

enum { VICTIM = 1, WITNESS = 2 }; /* worker numbers of the two trainers */

static struct page_peer victim, witness;
static uint32_t incarnation; /* of the victim */

static void setup(void)
{
    page_open_folder();
    incarnation = 0;
}

static void teardown(void)
{
    page_close(&victim);
    page_close(&witness);
    page_close_folder();
}

static void take_model(struct page_peer *peer, uint64_t version)
{
    page_ask(peer, PAGE_GET_MODEL, PAGE_NEWEST, 0, 0, page.model.fingerprint, NULL, 0);
    page_value(peer, &page.message);
    ck_assert_uint_eq(page.message.args[0], version);
}

static void join_victim(uint64_t version)
{
    page_close(&victim);
    page_open(&victim, page.addresses[0], VICTIM, 0, ++incarnation);
    page_join(&victim, &page.message);
    take_model(&victim, version);
}

static void join_both(void)
{
    page_open(&witness, page.addresses[0], WITNESS, 0, 1);
    page_join(&witness, &page.message);
    take_model(&witness, 0);
    join_victim(0);
}

static void push_all(struct page_peer *peer, uint64_t step, float value)
{
    const size_t elements = page.model.p + page.model.b;
    float *image = calloc(elements, sizeof *image);
    for (size_t i = 0; i < elements; i++)
        image[i] = value;
    page_push(peer, step, 0, elements, image, &page.message);
    free(image);
}

/* The whole round of both, which makes `version` + 1. */
static void whole_round(uint64_t version)
{
    push_all(&victim, version, 0.25f);
    push_all(&witness, version, 0.5f);
    page_push_pull(&victim, &page.model, version, version, 1);
    page_push_pull(&witness, &page.model, version, version, 2);
    page_updated(version + 1);
    page_value(&victim, &page.message);
    page_value(&witness, &page.message);
    ck_assert_uint_eq(page.message.args[0], version + 1);
}

/* ---- offences ---- */

static const float zeros[PAGE_CHUNK + 16];

static void ask(uint16_t method, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t count)
{
    page_ask(&victim, method, a, b, c, d, zeros, count);
}

/* A chunk whose header has `bytes` of `value` at `at`. */
static void send_chunk_with(size_t at, uint64_t value, unsigned bytes)
{
    uint8_t header[PAGE_HEADER];
    page_header(&victim, header, PAGE_REQUEST);
    page_put(header + 8, PAGE_PUSH_CHUNK, 2);
    page_put(header + 24, ++victim.requests, 8);
    memset(header + 32, 0xff, 8); /* no deadline */
    header[11] = header[88] = header[89] = 1;
    page_put(header + 92, 16, 4);
    page_put(header + 80, 64, 4);
    page_put(header + at, value, bytes);
    page_send(&victim, header, zeros, (size_t)page_get(header + 80, 4));
}

static void bare_reply_as_another(void)
{
    struct page_message request = {.method = PAGE_EVALUATE, .request = 1};
    victim.worker = WITNESS;
    page_answer(&victim, &request, 0, 0, 0);
    victim.worker = VICTIM;
}

static void unknown_method(void)
{
    ask(9, 0, 0, 0, 0, 0);
}

static void an_observers_method(void)
{
    ask(3, 0, 0, 0, 0, 0);
}

static void a_trainers_method(void)
{
    ask(PAGE_EVALUATE, 0, 0, 0, 2, 0);
}

static void a_servers_method(void)
{
    ask(8, 0, 0, 0, 0, 0);
}

static void another_model(void)
{
    ask(PAGE_GET_MODEL, PAGE_NEWEST, 0, 0, page.model.fingerprint + 1, 0);
}

static void a_question_with_a_tensor(void)
{
    ask(PAGE_GET_MODEL, PAGE_NEWEST, 0, 0, page.model.fingerprint, 16);
}

static void elements_beyond_the_end(void)
{
    ask(PAGE_GET_MODEL, 0, page.model.p + page.model.b - 15, 16, page.model.fingerprint, 0);
}

static void elements_beyond_all_numbers(void)
{
    ask(PAGE_GET_MODEL, 0, UINT64_MAX - 15, 32, page.model.fingerprint, 0);
}

static void a_chunk_of_numbers(void)
{
    send_chunk_with(88, 2, 1);
}

static void a_chunk_of_rank_2(void)
{
    send_chunk_with(89, UINT64_C(16) << 56 | UINT64_C(1) << 24 | 2, 8);
}

static void two_chunks_in_one(void)
{
    send_chunk_with(11, 2, 1);
}

static void no_chunk(void)
{
    ask(PAGE_PUSH_CHUNK, 0, 0, 0, 0, 0);
}

static void a_chunk_that_is_too_large(void)
{
    ask(PAGE_PUSH_CHUNK, 0, 0, 0, 0, PAGE_CHUNK + 16);
}

static void a_chunk_beyond_the_end(void)
{
    ask(PAGE_PUSH_CHUNK, 0, page.model.p + page.model.b, 0, 0, 16);
}

static void a_chunk_that_wraps_around(void)
{
    ask(PAGE_PUSH_CHUNK, 0, UINT64_MAX - 15, 0, 0, 32);
}

static void a_crooked_chunk(void)
{
    ask(PAGE_PUSH_CHUNK, 0, 8, 0, 0, 16);
}

static void a_chunk_of_another_step(void)
{
    ask(PAGE_PUSH_CHUNK, 7, 0, 0, 0, 16);
}

static void a_hole(void)
{
    page_push(&victim, 0, 0, 32, zeros, &page.message);
    page_push(&victim, 0, 16, 64, zeros, &page.message); /* overlaps: no offence, and counts once */
    page_push_pull(&victim, &page.model, 0, 0, 1);
}

static void push_with(uint64_t step, uint64_t base, double loss, uint64_t bytes)
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    push_all(&victim, 0, 1);
    ask(PAGE_PUSH_PULL, step, base, bits, bytes, 0);
}

static void another_size(void)
{
    push_with(0, 0, 1, 4 * (page.model.p + page.model.b) - 64);
}

static void another_step(void)
{
    push_with(1, 0, 1, 4 * (page.model.p + page.model.b));
}

static void another_version(void)
{
    push_with(0, 1, 1, 4 * (page.model.p + page.model.b));
}

static void an_infinite_loss(void)
{
    push_with(0, 0, (double)INFINITY, 4 * (page.model.p + page.model.b));
}

/* Whether a reply with status 2 comes first, and what is said. */
static const struct offence {
    void (*commit)(void);
    bool replied;
    const char *says;
} offences[] = {
    {bare_reply_as_another, false, "the source is not the connection's worker"},
    {unknown_method, false, "method 9"},
    {an_observers_method, false, "method 3 is not permitted here"},
    {a_trainers_method, false, "method 7 is not permitted here"},
    {a_servers_method, false, "method 8 is not permitted here"},
    {another_model, true, "trainer 1 computes another model"},
    {a_question_with_a_tensor, false, "1 tensors, expected 0"},
    {elements_beyond_the_end, true, "trainer 1 asks for 16 elements from"},
    {elements_beyond_all_numbers, true, "trainer 1 asks for 32 elements from 1844674"},
    {a_chunk_of_numbers, false, "dtype 2 of rank 1, expected 1 of rank 1"},
    {a_chunk_of_rank_2, false, "of rank 2, expected 1 of rank 1"},
    {two_chunks_in_one, false, "tensor 1: dtype 0"},
    {no_chunk, false, "0 tensors, expected 1"},
    {a_chunk_that_is_too_large, false, "at most 131072"},
    {a_chunk_beyond_the_end, true, "trainer 1 sends 16 elements from"},
    {a_chunk_that_wraps_around, true, "trainer 1 sends 32 elements from 1844674"},
    {a_crooked_chunk, true, "multiples of 16"},
    {a_chunk_of_another_step, true, "trainer 1 sent step 7: expected step 0"},
    {a_hole, true, "trainer 1, step 0: 4 of"},
    {another_size, true, "a contribution of"},
    {another_step, true, "trainer 1 sent step 1: expected step 0"},
    {another_version, true, "trainer 1, step 0: computed from version 1"},
    {an_infinite_loss, true, "trainer 1, step 0: its loss is inf"},
};

START_TEST(an_offence_costs_its_sender_the_session)
{
    page_serve(1, 2, "\"stop\":{\"updates\":5}");
    join_both();
    for (size_t i = 0; i < sizeof offences / sizeof *offences; i++) {
        offences[i].commit();
        if (offences[i].replied)
            page_expect(&victim, &page.message, PAGE_REPLY, 2, offences[i].says);
        page_expect(&victim, &page.message, PAGE_BYE, 0, offences[i].says);
        page_ask(&witness, PAGE_ECHO, i, 0, 0, 0, NULL, 0);
        page_value(&witness, &page.message);
        ck_assert_uint_eq(page.message.args[0], i);
        join_victim(0);
    }
    whole_round(0);
}
END_TEST

/* ---- HELLO again ---- */

START_TEST(hello_twice_changes_nothing)
{
    struct page_peer second;
    page_serve(1, 2, "\"stop\":{\"updates\":5}");
    join_both();
    page_push(&victim, 0, 0, 16, zeros, &page.message);
    page_join(&victim, &page.message);
    page_open(&second, page.addresses[0], VICTIM, 0, incarnation);
    page_hello(&second);
    page_expect(&second, &page.message, PAGE_BYE, 0, "here already");
    page_close(&second);
    page_open(&second, page.addresses[0], VICTIM, 0, incarnation + 1);
    second.secret = "not what the supervisor has drawn";
    page_hello(&second);
    page_expect(&second, &page.message, PAGE_BYE, 0, "does not prove the job's secret");
    page_close(&second);
    whole_round(0);
    join_victim(1); /* a later incarnation takes over, and goes on with the next step */
    ck_assert_uint_eq(page.message.args[2], 1);
    whole_round(1);
}
END_TEST

/* ---- evaluations ---- */

struct nonsense {
    double loss;
    uint64_t correct, samples;
};

/* The victim's part has 3 samples of 7. Each answer that cannot be costs it the session, and its successor is
 * asked; then the job ends well. */
START_TEST(a_nonsensical_evaluation_is_asked_for_again)
{
    static const struct nonsense answers[] = {{1, 4, 3}, {1, 2, 4}, {1, UINT64_MAX, UINT64_MAX}};
    static struct page_message request;
    char more[256];
    uint64_t bits;
    const double loss = 2.5;
    data_open();
    idx_write(4, 7);
    snprintf(more, sizeof more,
             "\"data\":{\"kind\":\"idx\",\"path\":\"%s\",\"size\":4},\"evaluation\":{\"every\":1},"
             "\"stop\":{\"epochs\":1}",
             data.folder);
    page_serve(1, 2, more);
    join_both();
    push_all(&victim, 0, 0.25f);
    push_all(&witness, 0, 0.5f);
    page_push_pull(&victim, &page.model, 0, 0, 1);
    page_push_pull(&witness, &page.model, 0, 0, 2);
    page_updated(1);
    page_expect(&victim, &request, PAGE_REQUEST, 0, "");
    page_value(&victim, &page.message);
    memcpy(&bits, &loss, sizeof bits);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        uint64_t wrong;
        memcpy(&wrong, &answers[i].loss, sizeof wrong);
        page_answer(&victim, &request, wrong, answers[i].correct, answers[i].samples);
        page_expect(&victim, &page.message, PAGE_BYE, 0, "trainer 1 evaluated");
        ck_assert_ptr_nonnull(strstr(page.message.text, "that cannot be"));
        page_close(&victim);
        page_open(&victim, page.addresses[0], VICTIM, 0, ++incarnation);
        page_join(&victim, &page.message);
        page_expect(&victim, &request, PAGE_REQUEST, 0, "");
        ck_assert_uint_eq(request.method, PAGE_EVALUATE);
        ck_assert_uint_eq(request.args[0], 1);
        ck_assert_uint_eq(request.args[2], 0);
    }
    page_answer(&victim, &request, bits, 2, 3);
    page_expect(&witness, &request, PAGE_REQUEST, 0, "");
    page_answer(&witness, &request, bits, 3, 4);
    bare_worker_expect(&page.servers[0], CONTROL_EPOCH);
    bare_worker_logged(&page.servers[0], 2);
    ck_assert_uint_eq(page.servers[0].message.body.epoch.correct, 5);
    ck_assert_uint_eq(page.servers[0].message.body.epoch.evaluated, 7);
    ck_assert(page.servers[0].message.body.epoch.evaluation_loss == 5.0 / 7);
    bare_worker_expect(&page.servers[0], CONTROL_FINISHED);
    data_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pserver_hostile");
    TCase *tcase = tcase_create("hostile");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, an_offence_costs_its_sender_the_session);
    tcase_add_test(tcase, hello_twice_changes_nothing);
    tcase_add_test(tcase, a_nonsensical_evaluation_is_asked_for_again);
    tcase_set_timeout(tcase, 100);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
