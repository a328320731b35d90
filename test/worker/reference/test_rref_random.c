/* References under chance: workers create, share, copy, release, call and grant at random. Messages are
 * delayed, reordered and repeated (test/worker/reference/rref_reorder.h), and workers take their turns in any
 * order and die at any moment. A model is asked at each destruction whether a worker holds the object.
 * Whenever all messages have arrived, every object that a worker holds lives and no other, and all counts are
 * the model's. In the end all counts are zero. A call through a held reference never finds its object gone.
 */
#include "test/worker/reference/rref_model.h"
#include "test/worker/reference/rref_reorder.h"
#include "test/workplace.h"

/* A message is let through only when POOL others can overtake it; calm lets all through. */
enum { STEPS = 12000, CALM_EVERY = 1500, POOL = 4 };

static unsigned shared, checked;
static char folder[64], doors[WORKERS - 1][96], addresses[WORKERS - 1][96];
static struct reorder reorder;
static uint64_t dice_state;

static uint64_t dice(void)
{
    uint64_t x = dice_state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static unsigned roll(unsigned sides)
{
    return (unsigned)(dice() % sides);
}

/* ---- people ---- */

static void hold(struct person *person, struct rref *rref, uint64_t item)
{
    if (person->held == HOLDINGS)
        rref_release(rref);
    else
        person->holdings[person->held++] = (struct holding){rref, item};
}

static void on_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    (void)from;
    shared++;
    hold(context, rref, tag);
}

static void let_go(struct person *person, unsigned at)
{
    struct rref *rref = person->holdings[at].rref;
    person->holdings[at] = person->holdings[--person->held];
    rref_release(rref);
}

static struct rpc_config config_of(const struct person *person)
{
    return (struct rpc_config){
        .worker = person->worker,
        .role = roster[person->worker],
        .incarnation = person->incarnation,
        .generation = 1,
        .roster = roster,
        .workers = WORKERS,
        .secret = NET_SECRET,
        .pending_max = 512,
        .incoming_max = 512,
    };
}

static void refer(struct person *person)
{
    struct error error = {0};
    struct rrefs_config config = {.rpc = person->rpc,
                                  .classes = classes,
                                  .class_count = 1,
                                  .objects_max = 512,
                                  .references_max = 256,
                                  .context = person,
                                  .taken = on_taken};
    ck_assert_msg(rrefs_new(&person->rrefs, &config, &error) == STATUS_OK, "%s", error.text);
}

static atomic_bool stop;

static void *turn_others(void *arg)
{
    while (!atomic_load(&stop)) {
        for (unsigned w = 0; w < WORKERS; w++)
            if (people[w].rpc != NULL && &people[w] != arg)
                rpc_turn(people[w].rpc, (struct monotime){1});
        reorder_take(&reorder);
        reorder_deliver_all(&reorder);
        usleep(200);
    }
    return NULL;
}

/* Comes to life; the others go on meanwhile. */
static void arise(struct person *person)
{
    struct rpc *rpc = NULL;
    struct error error = {0};
    pthread_t thread;
    struct rpc_config config = config_of(person);
    struct rpc_address below[WORKERS];
    size_t count = 0;
    for (uint16_t i = 0; i < person->worker; i++)
        if (people[i].rpc != NULL)
            below[count++] = (struct rpc_address){.worker = i, .address = doors[i]};
    const char *address = person->worker < WORKERS - 1 ? addresses[person->worker] : NULL;
    enum status status = rpc_open(&rpc, &config, address, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    atomic_store(&stop, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, turn_others, person), 0);
    status = rpc_dial(rpc, below, count, net_in_ms(20000), &error);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    person->rpc = rpc;
    refer(person);
}

/* Ends without a word. What it sent before may arrive still. */
static void die(struct person *person)
{
    deaths++;
    for (uint64_t i = 0; i < item_count; i++)
        if (items[i].was_made && items[i].owner == person->worker)
            items[i].owner_died = true;
    reorder_take(&reorder);
    reorder_cut(&reorder, person->worker);
    rrefs_free(person->rrefs);
    rpc_free(person->rpc, "dies", 0);
    uint16_t worker = person->worker;
    uint32_t incarnation = person->incarnation;
    *person = (struct person){.worker = worker, .incarnation = incarnation + 1};
}

/* ---- what people do ---- */

static struct asked *free_asked(struct person *person)
{
    for (unsigned i = 0; i < ASKED; i++)
        if (person->asked[i].what == ASK_NOTHING)
            return &person->asked[i];
    return NULL;
}

static void do_create(struct person *person, unsigned owner)
{
    struct rref *rref;
    struct error error = {0};
    uint64_t number = item_count;
    if (person->held == HOLDINGS || number == ITEMS)
        return;
    enum status status = rpc_remote(person->rrefs, (uint16_t)owner, "item",
                                    &(struct rpc_message){.args = {0, number}}, &rref, &error);
    if (status == STATUS_NOT_FOUND && people[owner].rpc == NULL)
        return;
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    items[item_count++] = (struct item){.owner = (uint16_t)owner};
    hold(person, rref, number);
}

/* A reference that is not ready, or has failed, can be used by no one. */
static bool is_usable(struct rref *rref)
{
    struct error error = {0};
    enum status status = rref_ready(rref, &error);
    bool is_expected = status == STATUS_OK || status == STATUS_AGAIN ||
                       (status == STATUS_INVALID && strstr(error.text, "unlucky") != NULL) ||
                       (status == STATUS_PEER_DIED && deaths > 0);
    ck_assert_msg(is_expected, "%s: %s", status_name(status), error.text);
    return status == STATUS_OK;
}

static void do_ask(struct person *person, const struct holding *holding, enum asking what, unsigned other)
{
    struct error error = {0};
    struct rref *rref = holding->rref;
    struct asked *asked = free_asked(person);
    struct asked new = {.what = what, .item = holding->item, .other = rref_owner(rref)};
    if (asked == NULL || !is_usable(rref) || (what == ASK_MAKE && item_count == ITEMS))
        return;
    struct rpc_message message = {.args = {0, 0, item_count, roll(2)}};
    uint32_t function = what == ASK_MAKE ? 2 : roll(2);
    enum status status;
    if (what == ASK_SHARE)
        status = rref_share(rref, (uint16_t)other, new.item, &new.future, &error);
    else
        status = rref_call(rref, function, &message, MONOTIME_NEVER, &new.future, &error);
    if (status == STATUS_PEER_DIED || status == STATUS_NOT_FOUND) {
        ck_assert_uint_gt(deaths, 0);
        return;
    }
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    if (what == ASK_SHARE)
        new.other = (uint16_t)other;
    if (what == ASK_MAKE) {
        items[item_count] = (struct item){.owner = new.other};
        new.made = item_count++;
    }
    *asked = new;
}

/* What was asked has been answered: rightly, or somebody died. */
static void do_judge(struct person *person, struct asked *asked)
{
    struct error error = {0};
    enum status status = future_status(asked->future);
    const struct rpc_message *value = future_value(asked->future);
    bool can_have_failed = status == STATUS_PEER_DIED && deaths > 0;
    ck_assert_msg(status == STATUS_OK || can_have_failed, "worker %u asked %d of %u: %s: %s", person->worker,
                  asked->what, asked->other, status_name(status), future_text(asked->future));
    if (status == STATUS_OK && asked->what == ASK_CALL)
        ck_assert_uint_eq(value->args[0], asked->item);
    if (status == STATUS_OK && asked->what == ASK_MAKE) {
        struct rref *rref;
        status = rref_accept(person->rrefs, asked->other, value->args[0], &item_class, &rref, &error);
        if (status == STATUS_OK)
            hold(person, rref, asked->made);
        else
            ck_assert_msg(status == STATUS_PEER_DIED && deaths > 0, "%s", error.text);
    }
    future_release(asked->future);
    asked->what = ASK_NOTHING;
    checked++;
}

static void judge_all(struct person *person)
{
    for (unsigned i = 0; i < ASKED; i++)
        if (person->asked[i].what != ASK_NOTHING && future_done(person->asked[i].future))
            do_judge(person, &person->asked[i]);
}

static void answer_one(struct person *person)
{
    unsigned at = roll(person->kept_count);
    struct kept kept = person->kept[at];
    person->kept[at] = person->kept[--person->kept_count];
    items[kept.item].calls--;
    if (kept.made != 0)
        grant(person, kept.request, kept.made);
    else
        rpc_reply(kept.request, &(struct rpc_message){.args = {kept.item}});
}

static void act(struct person *person)
{
    unsigned what = roll(16);
    struct holding *holding = person->held == 0 ? NULL : &person->holdings[roll(person->held)];
    if (what < 3 || holding == NULL) {
        do_create(person, roll(WORKERS));
    } else if (what < 6) {
        do_ask(person, holding, ASK_SHARE, roll(WORKERS));
        if (roll(2) == 0)
            let_go(person, (unsigned)(holding - person->holdings));
    } else if (what < 9) {
        do_ask(person, holding, ASK_CALL, 0);
    } else if (what < 10) {
        do_ask(person, holding, ASK_MAKE, 0);
    } else if (what < 11) {
        hold(person, rref_copy(holding->rref), holding->item);
    } else if (what < 14) {
        let_go(person, (unsigned)(holding - person->holdings));
    } else if (person->kept_count > 0) {
        answer_one(person);
    }
}

static void tell_death(unsigned to, uint16_t dead)
{
    if (people[to].rpc != NULL)
        rpc_peer_died(people[to].rpc, dead, UINT32_MAX, "it was seen dying");
}

/* Somebody dies, or somebody is told of a death. */
static void fate(void)
{
    struct person *person = &people[SERVERS + roll(WORKERS - SERVERS)];
    bool may_die = deaths < WORKERS - SERVERS - 1 && roll(30) == 0;
    if (person->rpc != NULL && may_die)
        die(person);
    else if (person->rpc == NULL)
        tell_death(roll(WORKERS), person->worker);
}

/* ---- calm ---- */

/* Whether what each worker knows is what the model knows. */
static bool is_as_modelled(void)
{
    for (uint64_t i = 0; i < item_count; i++) {
        bool lives = items[i].was_made && items[i].destroyed == 0;
        if (!items[i].owner_died && lives != (all_hold(i) > 0 && items[i].was_made))
            return false;
    }
    for (unsigned w = 0; w < WORKERS; w++) {
        struct rref_counts counts = {0};
        unsigned objects = 0, users = 0, own = 0;
        if (people[w].rpc == NULL)
            continue;
        rrefs_counts(people[w].rrefs, &counts);
        for (uint64_t i = 0; i < item_count; i++) {
            bool lives = items[i].was_made && items[i].destroyed == 0 && items[i].owner == w;
            objects += lives;
            own += lives && holds(&people[w], i) > 0;
            for (unsigned u = 0; lives && u < WORKERS; u++)
                users += u != w && holds(&people[u], i) > 0;
        }
        if (counts.objects != objects || counts.users != users ||
            rrefs_of_peer(people[w].rrefs, (uint16_t)w) != own)
            return false;
    }
    return true;
}

static bool all_answered(void)
{
    for (unsigned w = 0; w < WORKERS; w++) {
        judge_all(&people[w]);
        for (unsigned i = 0; i < ASKED; i++)
            if (people[w].asked[i].what != ASK_NOTHING)
                return false;
        for (unsigned i = 0; i < people[w].held; i++)
            if (rref_ready(people[w].holdings[i].rref, NULL) == STATUS_AGAIN)
                return false;
    }
    return true;
}

static void let_all_arrive(void)
{
    reorder_take(&reorder);
    reorder_deliver_all(&reorder);
    for (unsigned w = 0; w < WORKERS; w++) {
        if (people[w].rpc != NULL)
            rpc_turn(people[w].rpc, (struct monotime){1});
        while (people[w].kept_count > 0)
            answer_one(&people[w]);
    }
    usleep(100);
}

/* Everything that is on its way arrives, and of every death. */
static void calm_down(void)
{
    for (unsigned w = 0; w < WORKERS; w++) {
        for (unsigned i = 0; people[w].rpc == NULL && i < WORKERS; i++)
            tell_death(i, (uint16_t)w);
        while (people[w].kept_count > 0)
            answer_one(&people[w]);
    }
    UNTIL(all_answered() && is_as_modelled(), let_all_arrive());
}

static void step(void)
{
    struct person *person = &people[roll(WORKERS)];
    unsigned what = roll(100);
    if (what == 0)
        fate();
    else if (person->rpc == NULL)
        return;
    else if (what < 45)
        act(person);
    else if (what < 70)
        rpc_turn(person->rpc, (struct monotime){1});
    else if (what < 75)
        judge_all(person);
    else
        reorder_take(&reorder);
    for (unsigned i = roll(4); i > 0 && reorder.parcel_count > POOL; i--)
        reorder_deliver_one(&reorder, dice());
}

/* On a loaded machine messages need more steps to come, and so does what they bring about. */
static bool has_seen_enough(void)
{
    return deaths > 0 && shared > 100 && granted > 30 && reorder.overtaken > 1000;
}

static void open_world(uint64_t seed)
{
    dice_state = seed;
    snprintf(folder, sizeof folder, "/tmp/rref-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    reorder_open(&reorder);
    for (unsigned i = 0; i < WORKERS - 1; i++) {
        snprintf(addresses[i], sizeof addresses[i], "ipc://%s/%u", folder, i);
        snprintf(doors[i], sizeof doors[i], "ipc://%s/door%u", folder, i);
        reorder_add(&reorder, doors[i], addresses[i]);
    }
    for (unsigned w = 0; w < WORKERS; w++) {
        people[w] = (struct person){.worker = (uint16_t)w, .incarnation = 1};
        arise(&people[w]);
    }
}

static void close_world(void)
{
    for (unsigned w = WORKERS; w-- > 0;) {
        rrefs_free(people[w].rrefs);
        rpc_free(people[w].rpc, "the test is over", 0);
    }
    reorder_close(&reorder);
    for (unsigned i = 0; i < WORKERS - 1; i++) {
        unlink(doors[i] + strlen("ipc://"));
        unlink(addresses[i] + strlen("ipc://"));
    }
    rmdir(folder);
}

static void expect_zero(const struct person *person)
{
    struct rref_counts counts;
    struct rpc_counters counters;
    rrefs_counts(person->rrefs, &counts);
    rpc_counters(person->rpc, &counters);
    ck_assert_uint_eq(counts.objects + counts.references + counts.users, 0);
    ck_assert_uint_eq(counters.bad, 0);
}

START_TEST(test_who_holds_what)
{
    open_world(20230 + (uint64_t)_i);
    for (unsigned i = 0; i < STEPS || !has_seen_enough(); i++) {
        step();
        if (i % CALM_EVERY == CALM_EVERY - 1)
            calm_down();
    }
    calm_down();
    for (unsigned w = 0; w < WORKERS; w++)
        while (people[w].held > 0)
            let_go(&people[w], 0);
    calm_down();
    unsigned made = 0;
    for (uint64_t i = 0; i < item_count; i++) {
        ck_assert_uint_eq(items[i].destroyed, items[i].was_made);
        made += items[i].was_made;
    }
    for (unsigned w = 0; w < WORKERS; w++)
        if (people[w].rpc != NULL)
            expect_zero(&people[w]);
    printf(
        "%u objects, %u granted, %u references taken, %u answers, %u deaths; %u messages, %u out of order, "
        "%u repeated\n",
        made, granted, shared, checked, deaths, reorder.delivered, reorder.overtaken, reorder.repeated);
    close_world();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rref_random");
    TCase *tcase = tcase_create("random");
    tcase_add_loop_test(tcase, test_who_holds_what, 0, 3);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
