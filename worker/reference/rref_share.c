/* Passing a reference on: the giver's SHARE, and the taker's CLAIM to the owner. The taker answers SHARE when
 * the owner has counted it, and until then the giver keeps its entry. */
#include "worker/reference/rref_internal.h"

#include <assert.h>

enum status rref_share(struct rref *rref, uint16_t worker, uint64_t tag, struct future **out,
                       struct error *error)
{
    struct rpc_message message = {.args = {rref->link.number, rref->link.owner, tag}};
    return user_ask(rref, worker, METHOD_SHARE, &message, MONOTIME_NEVER, out, error);
}

/* The owner has counted this worker. `taken` may release the reference. */
static void share_hold(struct rref *ref, const struct rref_class *class)
{
    struct rrefs *rrefs = ref->rrefs;
    struct rpc_request *request = ref->request;
    uint64_t tag = ref->tag;
    struct rref *held = user_hold(ref, ref->link.number, class);
    rrefs->config.taken(rrefs->config.context, rpc_request_source(request), tag, held);
    rpc_reply(request, NULL);
}

static void share_refuse(struct rref *ref, enum status status, const char *text)
{
    struct rpc_request *request = ref->request;
    user_give_back(ref);
    rpc_fail(request, status, "%s", text);
}

/* The answer to CLAIM: the class's name. */
static enum status share_on_claimed(struct future *future, void *arg)
{
    struct rref *ref = arg;
    struct rrefs *rrefs = ref->rrefs;
    const struct rpc_message *value = future_value(future);
    enum status status = future_status(future);
    uint16_t owner = ref->link.owner;
    struct error error;
    if (!rrefs_call_ends(rrefs))
        return status;
    ref->flights--;
    if (value == NULL && rrefs_check_owner(rrefs, owner, ref->link.number, &error) != STATUS_OK) {
        share_refuse(ref, STATUS_PEER_DIED, error.text);
    } else if (value == NULL) {
        share_refuse(ref, status, future_text(future));
    } else if (ref->is_gone) {
        share_refuse(ref, STATUS_PEER_DIED, "the object's owner is gone");
    } else if (value->tensor_count != 1 || value->tensors[0].dtype != WIRE_U8 ||
               value->tensors[0].rank != 1 || value->tensors[0].dims[0] > RREF_NAME_BYTES) {
        share_refuse(ref, STATUS_INVALID, "the object's owner answered without its class");
        rpc_reject_worker(rrefs->rpc, owner, "an object's class is a tensor of 1 to %d bytes",
                          RREF_NAME_BYTES);
    } else {
        share_hold(ref, rrefs_class(rrefs, value->data[0], value->tensors[0].dims[0]));
    }
    return status;
}

static enum status share_claim(struct rref *ref, uint16_t giver, struct error *error)
{
    struct rpc_message message = {.args = {ref->link.number, giver}};
    enum status status = rrefs_check_owner(ref->rrefs, ref->link.owner, ref->link.number, error);
    if (status != STATUS_OK)
        return status;
    return user_send(ref, ref->link.owner, METHOD_CLAIM, &message, MONOTIME_NEVER, share_on_claimed, NULL,
                     error);
}

/* The object is this worker's own. */
static enum status share_claim_own(struct rref *ref, uint16_t giver, struct error *error)
{
    struct rrefs *rrefs = ref->rrefs;
    struct rref_object *object;
    enum status status = owner_find(rrefs, giver, ref->link.number, &object, error);
    if (status != STATUS_OK)
        return status;
    owner_count(rrefs, ref->link.number, rrefs->self);
    share_hold(ref, object->class);
    return STATUS_OK;
}

/* args: object, owner, tag. */
void share_on_share(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct rref *ref;
    struct error error = {0};
    uint64_t owner = message->args[1];
    uint16_t giver = rpc_request_source(request);
    if (owner >= rrefs->workers) {
        rpc_reject(request, "a reference to an object of worker %llu, of %u", (unsigned long long)owner,
                   rrefs->workers);
        return;
    }
    if (rrefs->config.taken == NULL) {
        rpc_fail(request, STATUS_PERMISSION, "worker %u takes no references", rrefs->self);
        return;
    }
    enum status status = user_take(rrefs, RREF_CLAIMING, (uint16_t)owner, &ref, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    ref->link.number = message->args[0];
    ref->request = request;
    ref->tag = message->args[2];
    status = owner == rrefs->self ? share_claim_own(ref, giver, &error) : share_claim(ref, giver, &error);
    if (status != STATUS_OK)
        share_refuse(ref, status, error.text);
}
