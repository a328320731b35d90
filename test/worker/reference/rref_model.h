/* The model of test_rref_random.c: workers, the references and open calls of each, and items, the objects
 * that they refer to. At every destruction the items' class asks the model whether a worker still holds the
 * item. */
#ifndef TEST_WORKER_REFERENCE_RREF_MODEL_H
#define TEST_WORKER_REFERENCE_RREF_MODEL_H

#include "test/worker/net/net_fixture.h"
#include "worker/reference/rref.h"

enum {
    WORKERS = 5,
    SERVERS = 2,   /* they stay; the others die */
    HOLDINGS = 24, /* of one worker */
    ASKED = 32,    /* calls and shares of one worker on their way */
    KEPT = 64,
    ITEMS = 16384,
    UNLUCKY = 31, /* every so manieth item cannot be made */
};

static const uint8_t roster[WORKERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER,
                                        WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};

/* ---- the model ---- */

struct item {
    uint16_t owner;
    bool was_made, owner_died;
    unsigned destroyed, calls; /* that are open */
};

/* A handle of a worker's. */
struct holding {
    struct rref *rref;
    uint64_t item;
};

enum asking { ASK_NOTHING, ASK_CALL, ASK_MAKE, ASK_SHARE };

struct asked {
    enum asking what;
    struct future *future;
    uint64_t item, made; /* ASK_MAKE: the new one */
    uint16_t other;      /* the owner, or who is given it */
};

struct kept {
    struct rpc_request *request;
    uint64_t item, made; /* the latter: to be made and granted, or 0 */
};

struct person {
    uint16_t worker;
    uint32_t incarnation;
    struct rpc *rpc; /* NULL: dead */
    struct rrefs *rrefs;
    struct holding holdings[HOLDINGS];
    unsigned held, kept_count;
    struct asked asked[ASKED];
    struct kept kept[KEPT];
};

static struct person people[WORKERS];
static struct item items[ITEMS];
static uint64_t item_count;
static unsigned deaths, granted;

/* Who holds the item, as the model knows; a share or a grant on its way is held by who asked. */
static inline unsigned holds(const struct person *person, uint64_t item)
{
    unsigned count = 0;
    if (person->rpc == NULL)
        return 0;
    for (unsigned i = 0; i < person->held; i++)
        count += person->holdings[i].item == item;
    for (unsigned i = 0; i < ASKED; i++) {
        const struct asked *asked = &person->asked[i];
        count += asked->what == ASK_SHARE && asked->item == item && !future_done(asked->future);
        count += asked->what == ASK_MAKE && asked->made == item &&
                 (!future_done(asked->future) || future_status(asked->future) == STATUS_OK);
    }
    return count;
}

static inline unsigned all_hold(uint64_t item)
{
    unsigned count = items[item].calls;
    for (unsigned w = 0; w < WORKERS; w++)
        count += holds(&people[w], item) > 0;
    return count;
}

/* ---- the class ---- */

static inline void *new_item(uint16_t owner, uint64_t number)
{
    ck_assert(!items[number].was_made);
    items[number].was_made = true;
    items[number].owner = owner;
    return &items[number];
}

static inline enum status item_create(void *context, const struct rref_class *class,
                                      const struct rpc_message *arguments, void **object, struct error *error)
{
    const struct person *person = context;
    uint64_t number = arguments->args[1];
    if (number % UNLUCKY == 0)
        return error_set(error, STATUS_INVALID, "%s %llu is unlucky", class->name,
                         (unsigned long long)number);
    *object = new_item(person->worker, number);
    return STATUS_OK;
}

static inline void item_destroy(void *object)
{
    struct item *item = object;
    uint64_t number = (uint64_t)(item - items);
    ck_assert_uint_eq(++item->destroyed, 1);
    if (!item->owner_died)
        ck_assert_msg(all_hold(number) == 0, "item %llu is destroyed, %u hold it", (unsigned long long)number,
                      all_hold(number));
}

static inline void item_get(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    (void)message;
    rpc_reply(request, &(struct rpc_message){.args = {(uint64_t)((struct item *)object - items)}});
}

/* False: no more can be kept. */
static inline bool keep(struct item *item, struct rpc_request *request, uint64_t made)
{
    struct person *person = &people[item->owner];
    if (person->kept_count == KEPT)
        return false;
    item->calls++;
    person->kept[person->kept_count++] = (struct kept){request, (uint64_t)(item - items), made};
    return true;
}

static inline void item_keep(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    if (!keep(object, request, 0))
        item_get(object, request, message);
}

static const struct rref_class item_class;

static inline void grant(struct person *person, struct rpc_request *request, uint64_t number)
{
    struct rpc_message reply = {0};
    struct error error = {0};
    enum status status = rref_grant(person->rrefs, &item_class, new_item(person->worker, number), request,
                                    &reply.args[0], &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    rpc_reply(request, &reply);
    granted++;
}

/* At once or later, when the caller may have died. */
static inline void item_make(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct item *item = object;
    if (message->args[3] == 0 || !keep(item, request, message->args[2]))
        grant(&people[item->owner], request, message->args[2]);
}

static rref_function *const item_functions[] = {item_get, item_keep, item_make};
static const struct rref_class item_class = {.name = "item",
                                             .create = item_create,
                                             .destroy = item_destroy,
                                             .functions = item_functions,
                                             .function_count = 3};
static const struct rref_class *const classes[] = {&item_class};

#endif
