/* The owner's side of the distributed optimizer: the parameters of this worker's objects, and the local
 * optimizers that step them. A role's thread runs all of it, in handlers.
 *
 *     owned        an object with parameters that somebody has asked for
 *     entry        one parameter of an owned object: an object of class "parameter"
 *     local        a local optimizer: the share of a distributed optimizer that lives on this worker, an
 *                  object of class "optimizer". It keeps its parameters, and those their owned objects.
 *     member       a parameter of a local optimizer
 *     group        the members that belong to one owned object
 *     participant  a worker that takes part in the local optimizer's rounds */
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_versions.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dist_owner {
    struct dist *dist;
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct owned *owned;
    struct local *locals;
};

struct owned {
    struct dist_owner *owner;
    struct owned *next;
    uint64_t number; /* the object's; in use as long as this exists */
    void *object;
    struct params *params;
    struct dist_versions *versions; /* NULL: its parameters have one version */
    uint32_t users;                 /* objects of class "parameter": several may be of one entry */
    uint32_t count;                 /* of trained parameters */
    struct entry {
        struct owned *owned;
        struct parameter *parameter;
        struct group *group; /* of the optimizer that has the parameter, or NULL */
    } entries[];             /* (count), in the params' order */
};

struct group {
    struct local *local;
    struct owned *owned;
    struct optimizer *optimizer;
    struct gradients *sum;  /* its own: of several contexts, or of some of the object's parameters; NULL: not
                               needed yet */
    struct gradients *used; /* of this step: `sum`, or a context's own */
    uint32_t members;
};

struct member {
    struct entry *entry;
    uint64_t number; /* of the object that the optimizer was given; in use until the optimizer ends */
};

struct participant {
    uint16_t worker;
    struct rpc_request *request; /* in the open round; NULL: none (yet) */
    uint64_t context;
    uint64_t normed; /* the context of its last norm, which a step with clipping has to follow; 0: none */
    struct step_words words;
};

enum round { ROUND_NONE, ROUND_NORM, ROUND_STEP };

struct local {
    struct dist_owner *owner;
    struct local *next;
    struct optimizer_settings settings;
    bool async;
    struct error ended; /* not `async`: a participant has died, or has freed its optimizer */
    enum round round;
    uint32_t waiting; /* participants with a request */
    uint32_t count, group_count, participant_count;
    uint32_t indices[DIST_PARAMETERS_MAX];      /* (count) of its parameters, in the whole optimizer's list */
    struct member members[DIST_PARAMETERS_MAX]; /* (count) */
    double sums[DIST_PARAMETERS_MAX];           /* (count) square sums */
    struct group groups[DIST_PARAMETERS_MAX];   /* (group_count) */
    struct participant participants[DIST_PARTICIPANTS_MAX];
};

static void request_answer(struct rpc_request *request, enum status status, const struct error *error,
                           const struct rpc_message *reply)
{
    if (status == STATUS_OK)
        rpc_reply(request, reply);
    else
        rpc_fail(request, status, "%s", error->text);
}

/* ---- objects with parameters ---- */

/* On STATUS_OK the use of `object` is kept. */
static enum status owned_new(struct owned **out, struct dist_owner *owner, uint64_t number, void *object,
                             const struct rref_class *class, struct error *error)
{
    const struct dist_class *extension = class->extension;
    struct params *params = extension != NULL && extension->params != NULL ? extension->params(object) : NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; params != NULL && i < params_count(params); i++)
        count += params_at(params, i)->kind == PARAMETER_TRAINED;
    if (count == 0 || count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID,
                         "object %llu of class %s has %u trained parameters, expected 1..%d",
                         (unsigned long long)number, class->name, count, DIST_PARAMETERS_MAX);
    struct owned *owned = calloc(1, sizeof *owned + count * sizeof owned->entries[0]);
    if (owned == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u parameters", count);
    *owned = (struct owned){
        .owner = owner, .next = owner->owned, .number = number, .object = object, .params = params};
    owned->versions = extension->versions != NULL ? extension->versions(object) : NULL;
    for (uint32_t i = 0; i < params_count(params); i++)
        if (params_at(params, i)->kind == PARAMETER_TRAINED)
            owned->entries[owned->count++] = (struct entry){owned, params_at(params, i), NULL};
    owner->owned = owned;
    *out = owned;
    return STATUS_OK;
}

/* The object `number`, known already or not, with one more user. STATUS_INVALID: it has no parameters, or too
 * many; errors as rref_object_use. */
static enum status owned_use(struct owned **out, struct dist_owner *owner, uint16_t source, uint64_t number,
                             struct error *error)
{
    void *object;
    const struct rref_class *class;
    enum status status = rref_object_use(owner->rrefs, source, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    struct owned *owned = owner->owned;
    while (owned != NULL && owned->number != number)
        owned = owned->next;
    const bool known = owned != NULL;
    if (!known)
        status = owned_new(&owned, owner, number, object, class, error);
    if (known || status != STATUS_OK)
        rref_object_done(owner->rrefs, number);
    if (status != STATUS_OK)
        return status;
    owned->users++;
    *out = owned;
    return STATUS_OK;
}

static void owned_release(struct owned *owned)
{
    if (--owned->users > 0)
        return;
    struct owned **link = &owned->owner->owned;
    while (*link != owned)
        link = &(*link)->next;
    *link = owned->next;
    rref_object_done(owned->owner->rrefs, owned->number);
    free(owned);
}

/* ---- values of one parameter ---- */

static size_t entry_elements(const struct entry *entry)
{
    return shape_elements(&entry->parameter->tensor.shape);
}

/* STATUS_INVALID: `count` is not the number of the parameter's values. */
static enum status entry_check_count(const struct entry *entry, size_t count, struct error *error)
{
    const size_t elements = entry_elements(entry);
    return count == elements ? STATUS_OK
                             : error_set(error, STATUS_INVALID, "parameter %s has %zu values, got %zu",
                                         entry->parameter->name, elements, count);
}

static enum status entry_find_moment(const struct entry *entry, uint64_t which, struct gradients **out,
                                     struct error *error)
{
    const struct group *group = entry->group;
    const bool known = which == DIST_MOMENT_FIRST || which == DIST_MOMENT_SECOND;
    *out = known && group != NULL ? optimizer_moment(group->optimizer, which == DIST_MOMENT_FIRST ? 0 : 1)
                                  : NULL;
    return *out != NULL
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "parameter %s has no %s here", entry->parameter->name,
                           which == DIST_MOMENT_FIRST    ? "first moment"
                           : which == DIST_MOMENT_SECOND ? "second moment"
                                                         : "such values");
}

enum status parameter_read(const void *parameter, uint64_t which, float *values, size_t count,
                           struct error *error)
{
    const struct entry *entry = parameter;
    struct gradients *moment;
    enum status status = entry_check_count(entry, count, error);
    if (status == STATUS_OK && which == DIST_VALUES)
        return params_read(entry->owned->params, entry->parameter, DTYPE_F32, values, error);
    if (status == STATUS_OK)
        status = entry_find_moment(entry, which, &moment, error);
    return status == STATUS_OK ? gradients_read(moment, entry->parameter, DTYPE_F32, values, error) : status;
}

static enum status entry_write(struct entry *entry, uint64_t which, const float *values, struct error *error)
{
    struct owned *owned = entry->owned;
    struct gradients *moment;
    enum status status = STATUS_OK;
    if (which != DIST_VALUES) {
        status = entry_find_moment(entry, which, &moment, error);
        return status == STATUS_OK ? gradients_write(moment, entry->parameter, DTYPE_F32, values, error)
                                   : status;
    }
    if (owned->versions != NULL)
        status = dist_versions_advance(owned->versions, error);
    return status == STATUS_OK ? params_write(owned->params, entry->parameter, DTYPE_F32, values, error)
                               : status;
}

/* ---- a local optimizer: gathering gradients ----
 * With one participant and all parameters of an object, the context's own gradients are used and nothing is
 * copied. Otherwise gradients are added up in a slab of the optimizer's own, in the order of the
 * participants. The object's other parameters have zeros there, and a gradient of zero does not move a
 * parameter without moments. All failures with a cause outside of these functions come before the first
 * parameter changes. */

/* A context's gradients for the group's object. NULL: they are zero. */
static enum status group_find_gradients(const struct group *group, uint64_t context, struct gradients **out,
                                        struct error *error)
{
    *out = NULL;
    enum status status = dist_gradients(group->owned->owner->dist, context, group->owned->object, out, error);
    if (status == STATUS_NOT_FOUND) {
        *out = NULL;
        return STATUS_OK;
    }
    return status == STATUS_OK && *out != NULL ? gradients_complete(*out, error) : status;
}

/* Adds a context's gradients of the optimizer's parameters to the group's sum. */
static enum status group_add_context(struct local *local, struct group *group, uint64_t context,
                                     struct error *error)
{
    struct gradients *from = NULL;
    enum status status = group_find_gradients(group, context, &from, error);
    for (uint32_t i = 0; i < local->count && from != NULL && status == STATUS_OK; i++)
        if (local->members[i].entry->group == group)
            status = gradients_add(group->sum, from, local->members[i].entry->parameter, error);
    return status;
}

static enum status group_gather(struct local *local, struct group *group,
                                const struct participant *participants, uint32_t count, struct error *error)
{
    enum status status = STATUS_OK;
    if (count == 1 && group->members == group->owned->count) {
        status = group_find_gradients(group, participants[0].context, &group->used, error);
        if (status != STATUS_OK || group->used != NULL)
            return status;
    }
    if (group->sum == NULL)
        status = gradients_new(&group->sum, group->owned->params, error);
    if (status != STATUS_OK)
        return status;
    gradients_begin(group->sum);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        status = group_add_context(local, group, participants[i].context, error);
    if (status == STATUS_OK)
        status = gradients_complete(group->sum, error);
    group->used = group->sum;
    return status;
}

static enum status local_gather(struct local *local, const struct participant *participants, uint32_t count,
                                struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = group_gather(local, &local->groups[g], participants, count, error);
    return status;
}

static enum status local_check_finite(struct local *local, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = gradients_check(local->groups[g].used, error);
    return status;
}

/* ---- a local optimizer: the norm ---- */

/* For the requests of `count` participants, in the order of their numbers. Sets `sums`, and changes no
 * parameter and no moment. Squares of finite float32s do not overflow a double, so a sum that is not finite
 * has a gradient that is not. */
static enum status local_take_norm(struct local *local, const struct participant *participants,
                                   uint32_t count, struct error *error)
{
    bool finite = true;
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    enum status status = local_gather(local, participants, count, error);
    for (uint32_t i = 0; i < local->count && status == STATUS_OK; i++) {
        const struct entry *entry = local->members[i].entry;
        local->sums[i] = 0;
        status = gradients_square_sum(entry->group->used, entry->parameter, &local->sums[i], error);
        finite = finite && isfinite(local->sums[i]);
    }
    profile_leave(before);
    return status == STATUS_OK && !finite ? local_check_finite(local, error) : status;
}

/* ---- a local optimizer: the step ---- */

static enum status local_check_numbers(const struct local *local, const struct participant *participants,
                                       uint32_t count, struct error *error)
{
    const struct step_words *words = &participants[0].words;
    const double max_norm = words->max_norm;
    enum status status = STATUS_OK;
    if (!(max_norm >= 0) || !isfinite(max_norm))
        return error_set(error, STATUS_INVALID, "expected a finite max_norm >= 0, got %g", max_norm);
    if (max_norm > 0 && (!(words->norm >= 0) || !isfinite(words->norm)))
        return error_set(error, STATUS_INVALID, "expected a finite norm >= 0, got %g", words->norm);
    for (uint32_t i = 0; i < count && max_norm > 0; i++)
        if (participants[i].normed != participants[i].context)
            return error_set(error, STATUS_INVALID,
                             "worker %u steps by a norm, which context %llx has not been asked for",
                             participants[i].worker, (unsigned long long)participants[i].context);
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = optimizer_lr_set(local->groups[g].optimizer, words->lr, error);
    return status;
}

/* STATUS_BUSY: all versions of an object's values have readers. Values with one version may always change:
 * readers of those are not known here (dist_optimizer.h, "The round"). */
static enum status local_check_versions(const struct local *local, struct error *error)
{
    for (uint32_t g = 0; g < local->group_count; g++) {
        const struct owned *owned = local->groups[g].owned;
        if (owned->versions != NULL && !dist_versions_can_advance(owned->versions))
            return error_set(error, STATUS_BUSY, "all %u versions of %s are being read",
                             dist_versions_slots(owned->versions), owned->entries[0].parameter->name);
    }
    return STATUS_OK;
}

static enum status group_step(struct group *group, const struct step_words *words, struct error *error)
{
    const struct owned *owned = group->owned;
    const double factor = words->max_norm / (words->norm + 1e-6);
    enum status status = STATUS_OK;
    if (words->max_norm > 0 && factor < 1)
        status = backend_scale(params_backend(owned->params), gradients_slab(group->used), factor, error);
    if (status == STATUS_OK && owned->versions != NULL)
        status = dist_versions_advance(owned->versions, error);
    return status == STATUS_OK ? optimizer_step(group->optimizer, group->used, error) : status;
}

/* For the requests of `count` participants. After the norm of the same contexts, the gradients are known to
 * be finite, and a sum of several is in `sum`. */
static enum status local_take_step(struct local *local, const struct participant *participants,
                                   uint32_t count, struct error *error)
{
    const struct step_words *words = &participants[0].words;
    const bool clips = words->max_norm > 0;
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    enum status status = local_check_numbers(local, participants, count, error);
    if (status == STATUS_OK)
        status = local_check_versions(local, error);
    if (status == STATUS_OK && !(clips && count > 1))
        status = local_gather(local, participants, count, error);
    if (status == STATUS_OK && !clips)
        status = local_check_finite(local, error);
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = group_step(&local->groups[g], words, error);
    profile_leave(before);
    return status;
}

/* ---- rounds ----
 * `all`: requests are kept until every participant has sent one. Then the norm or the step is taken once, and
 * all requests get the same answer, whatever order they came in. `async`: each request is a round of its own.
 * Requests are answered last, when the next round may begin. */

static struct participant *round_find_participant(struct local *local, uint16_t worker)
{
    for (uint32_t i = 0; i < local->participant_count; i++)
        if (local->participants[i].worker == worker)
            return &local->participants[i];
    return NULL;
}

/* Answers every request of the round, with `reply` or a failure. */
static void round_end(struct local *local, struct participant *participants, uint32_t count,
                      enum status status, const struct error *error, const struct rpc_message *reply)
{
    local->round = ROUND_NONE;
    for (uint32_t i = 0; i < count; i++) {
        struct rpc_request *request = participants[i].request;
        participants[i].request = NULL;
        if (request == NULL)
            continue;
        local->waiting--;
        request_answer(request, status, error, reply);
    }
}

static void round_fail(struct local *local, enum status status, const struct error *error)
{
    round_end(local, local->participants, local->participant_count, status, error, NULL);
}

static void round_finish(struct local *local, enum round round, struct participant *participants,
                         uint32_t count)
{
    struct error error = {0};
    struct rpc_message reply = {0};
    enum status status = round == ROUND_NORM ? local_take_norm(local, participants, count, &error)
                                             : local_take_step(local, participants, count, &error);
    for (uint32_t i = 0; i < count; i++) {
        participants[i].normed = round == ROUND_NORM && status == STATUS_OK ? participants[i].context : 0;
        reply.args[0] |= participants[i].words.last != 0;
    }
    if (round == ROUND_NORM) {
        message_add(&reply, WIRE_U64, local->sums, local->count);
        message_add(&reply, WIRE_U32, local->indices, local->count);
    }
    round_end(local, participants, count, status, &error, &reply);
}

/* A participant steps by contexts whose root it is: the upper 16 bits of the id (dist.h). */
static enum status round_take_request(struct local *local, enum round round, struct rpc_request *request,
                                      const struct rpc_message *message, struct participant **out,
                                      struct error *error)
{
    const uint16_t source = rpc_request_source(request);
    struct participant *participant = round_find_participant(local, source);
    if (participant == NULL)
        return error_set(error, STATUS_INVALID, "worker %u takes no part in this optimizer", source);
    if (message->context == 0 || message->context >> 48 != source)
        return error_set(error, STATUS_INVALID, "worker %u cannot step by context %llx, which is not its own",
                         source, (unsigned long long)message->context);
    if (participant->request != NULL)
        return error_set(error, STATUS_INVALID, "worker %u has asked already in this round", source);
    if (local->ended.status != STATUS_OK)
        *error = local->ended;
    else if (round == ROUND_STEP && message_flat(message, 0, WIRE_U64) != STEP_WORDS)
        error_set(error, STATUS_INVALID, "a step has %d words", STEP_WORDS);
    if (error->status != STATUS_OK)
        return error->status;
    participant->words = (struct step_words){0};
    if (round == ROUND_STEP)
        memcpy(&participant->words, message->data[0], sizeof participant->words);
    participant->request = request;
    participant->context = message->context;
    local->waiting++;
    *out = participant;
    return STATUS_OK;
}

/* All requests of a round ask for the same, with the same numbers; only `last` may differ. */
static enum status round_check_agreement(const struct local *local, const struct participant *newest,
                                         enum round round, struct error *error)
{
    if (local->round != round)
        return error_set(error, STATUS_INVALID, "worker %u asks for a step %s clipping, others do not",
                         newest->worker, round == ROUND_NORM ? "with" : "without");
    const struct step_words *mine = &newest->words;
    for (uint32_t i = 0; i < local->participant_count; i++) {
        const struct participant *other = &local->participants[i];
        const struct step_words *theirs = &other->words;
        if (other->request != NULL && memcmp(theirs, mine, offsetof(struct step_words, last)) != 0)
            return error_set(error, STATUS_INVALID,
                             "worker %u asks for lr %g, max_norm %g of norm %g, worker %u for %g, %g of %g",
                             newest->worker, mine->lr, mine->max_norm, mine->norm, other->worker, theirs->lr,
                             theirs->max_norm, theirs->norm);
    }
    return STATUS_OK;
}

static void round_add_request(struct local *local, enum round round, struct rpc_request *request,
                              const struct rpc_message *message)
{
    struct error error = {0};
    struct participant *participant = NULL;
    enum status status = round_take_request(local, round, request, message, &participant, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    if (local->async) {
        round_finish(local, round, participant, 1);
        return;
    }
    if (local->round == ROUND_NONE)
        local->round = round;
    status = round_check_agreement(local, participant, round, &error);
    if (status != STATUS_OK)
        round_fail(local, status, &error);
    else if (local->waiting == local->participant_count)
        round_finish(local, round, local->participants, local->participant_count);
}

static void local_norm(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    round_add_request(object, ROUND_NORM, request, message);
}

static void local_step(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    round_add_request(object, ROUND_STEP, request, message);
}

/* A worker has died (STATUS_PEER_DIED), or has freed its optimizer (STATUS_SHUTDOWN). If it is a participant
 * of a round of all, the open round fails with that status, and so do all later ones. */
static void local_worker_left(struct local *local, uint16_t worker, enum status why)
{
    if (local->async || local->ended.status != STATUS_OK || round_find_participant(local, worker) == NULL)
        return;
    error_set(&local->ended, why, "worker %u, which takes part in every step, has %s", worker,
              why == STATUS_SHUTDOWN ? "left" : "died");
    round_fail(local, why, &local->ended);
}

/* ---- a local optimizer: its end ---- */

static void local_destroy(void *object)
{
    struct local *local = object;
    struct local **link = &local->owner->locals;
    while (*link != local)
        link = &(*link)->next;
    *link = local->next;
    for (uint32_t g = 0; g < local->group_count; g++) {
        optimizer_free(local->groups[g].optimizer);
        gradients_free(local->groups[g].sum);
    }
    for (uint32_t i = 0; i < local->count && local->members[i].entry != NULL; i++) {
        struct entry *entry = local->members[i].entry;
        if (entry->group != NULL && entry->group->local == local)
            entry->group = NULL;
        rref_object_done(local->owner->rrefs, local->members[i].number);
    }
    free(local);
}

/* ---- a local optimizer: made of a description that another worker sends ---- */

/* The settings, indices and participants of the message. */
static enum status local_decode(struct local *local, const struct rpc_message *message, struct error *error)
{
    const uint32_t count = message_flat(message, 1, WIRE_U64), workers = rpc_workers(local->owner->rpc),
                   participants = message_flat(message, 3, WIRE_U32);
    const bool is_whole = message_flat(message, 0, WIRE_U64) == OPTIMIZER_WORDS && count > 0 &&
                          message_flat(message, 2, WIRE_U32) == count;
    struct optimizer_words words;
    if (is_whole)
        memcpy(&words, message->data[0], sizeof words);
    if (!is_whole || words.kind > OPTIMIZER_ADAM || words.async > 1)
        return error_set(error, STATUS_INVALID, "this is no description of an optimizer");
    if (count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u parameters, expected 1..%d", count,
                         DIST_PARAMETERS_MAX);
    if (participants == 0 || participants > DIST_PARTICIPANTS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u participants, expected 1..%d",
                         participants, DIST_PARTICIPANTS_MAX);
    local->count = count;
    local->participant_count = participants;
    local->async = words.async == 1;
    local->settings = (struct optimizer_settings){
        .kind = words.kind == OPTIMIZER_ADAM ? OPTIMIZER_ADAM : OPTIMIZER_SGD,
        .sgd = {.lr = words.lr, .momentum = words.momentum},
        .adam = {.lr = words.lr, .beta1 = words.beta1, .beta2 = words.beta2, .epsilon = words.epsilon}};
    memcpy(local->indices, message->data[2], count * sizeof local->indices[0]);
    for (uint32_t i = 0; i < participants; i++) {
        uint32_t worker;
        memcpy(&worker, (const char *)message->data[3] + i * sizeof worker, sizeof worker);
        if (worker >= workers)
            return error_set(error, STATUS_INVALID, "participant %u of an optimizer: there are %u workers",
                             worker, workers);
        if (i > 0 && worker <= local->participants[i - 1].worker)
            return error_set(
                error, STATUS_INVALID,
                "an optimizer's participants come in ascending order, worker %u after %u does not", worker,
                local->participants[i - 1].worker);
        local->participants[i].worker = (uint16_t)worker;
    }
    return STATUS_OK;
}

/* `async` may change parameters that other contexts have still to walk. So they need versions: one for each
 * participant, and the next one. */
static enum status local_check_enough_versions(const struct local *local, const struct owned *owned,
                                               struct error *error)
{
    const char *name = owned->entries[0].parameter->name;
    if (!local->async)
        return STATUS_OK;
    const struct backend_ops *ops = params_backend(owned->params)->ops;
    if (!ops->host)
        return error_set(error, STATUS_UNAVAILABLE,
                         "parameter %s: a round that is async needs versions, which memory of %s has not",
                         name, ops->name);
    const uint32_t slots = owned->versions != NULL ? dist_versions_slots(owned->versions) : 1;
    if (slots <= local->participant_count)
        return error_set(error, STATUS_INVALID,
                         "parameter %s: a round that is async with %u participants needs %u versions of it, "
                         "its object has %u",
                         name, local->participant_count, local->participant_count + 1, slots);
    return STATUS_OK;
}

static enum status local_find_group(struct local *local, struct owned *owned, struct group **out,
                                    struct error *error)
{
    for (uint32_t g = 0; g < local->group_count; g++)
        if (local->groups[g].owned == owned) {
            *out = &local->groups[g];
            return STATUS_OK;
        }
    enum status status = local_check_enough_versions(local, owned, error);
    if (status != STATUS_OK)
        return status;
    struct group *group = &local->groups[local->group_count];
    group->local = local;
    group->owned = owned;
    status = optimizer_new(&group->optimizer, &local->settings, owned->params, error);
    if (status != STATUS_OK)
        return status;
    local->group_count++;
    *out = group;
    return STATUS_OK;
}

/* Makes object `number` member i. STATUS_INVALID: it is no parameter, or has an optimizer. */
static enum status local_add_member(struct local *local, uint32_t i, uint16_t source, uint64_t number,
                                    struct error *error)
{
    void *object;
    const struct rref_class *class;
    enum status status = rref_object_use(local->owner->rrefs, source, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    if (class != &dist_parameter_class) {
        rref_object_done(local->owner->rrefs, number);
        return error_set(error, STATUS_INVALID, "object %llu is of class %s, expected a parameter",
                         (unsigned long long)number, class->name);
    }
    struct entry *entry = object;
    local->members[i] = (struct member){entry, number};
    if (entry->group != NULL)
        return error_set(error, STATUS_INVALID, "parameter %s %s", entry->parameter->name,
                         entry->group->local == local ? "is given twice" : "has an optimizer already");
    status = local_find_group(local, entry->owned, &entry->group, error);
    if (status == STATUS_OK)
        entry->group->members++;
    return status;
}

static enum status local_make(struct local **out, struct dist_owner *owner, uint16_t source,
                              const struct rpc_message *message, struct error *error)
{
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an optimizer");
    local->owner = owner;
    local->next = owner->locals;
    owner->locals = local;
    enum status status = local_decode(local, message, error);
    for (uint32_t i = 0; i < local->count && status == STATUS_OK; i++) {
        uint64_t number;
        memcpy(&number, (const char *)message->data[1] + i * sizeof number, sizeof number);
        status = local_add_member(local, i, source, number, error);
    }
    if (status != STATUS_OK) {
        local_destroy(local);
        return status;
    }
    *out = local;
    return STATUS_OK;
}

/* ---- class "optimizer" ---- */

static void answer_steps_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct local *local = object;
    for (uint32_t g = 0; g < local->group_count; g++)
        optimizer_steps_set(local->groups[g].optimizer, message->args[2]);
    rpc_reply(request, NULL);
}

/* A participant without a reference asks for no step any more. */
static void local_released(void *object, uint16_t worker)
{
    local_worker_left(object, worker, STATUS_SHUTDOWN);
}

static rref_function *const optimizer_functions[LOCAL_FUNCTIONS] = {
    [LOCAL_NORM] = local_norm,
    [LOCAL_STEP] = local_step,
    [LOCAL_STEPS_SET] = answer_steps_set,
};

const struct rref_class dist_optimizer_class = {
    .name = "optimizer",
    .destroy = local_destroy,
    .released = local_released,
    .functions = optimizer_functions,
    .function_count = LOCAL_FUNCTIONS,
};

/* ---- class "parameter" ---- */

static void parameter_destroy(void *object)
{
    owned_release(((struct entry *)object)->owned);
}

/* A reply to this worker itself would lend `values` (rpc.h), so dist_optimizer_participant.c reads this
 * worker's parameters in place. */
static void answer_get(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const size_t elements = entry_elements(object);
    struct error error = {0};
    struct rpc_message reply = {0};
    float *values = malloc(elements * sizeof *values);
    enum status status = values != NULL
                             ? parameter_read(object, message->args[VALUES_WHICH], values, elements, &error)
                             : error_set(&error, STATUS_NO_MEMORY, "no memory for %zu values", elements);
    message_add(&reply, WIRE_F32, values, (uint32_t)elements);
    request_answer(request, status, &error, &reply);
    free(values);
}

/* The values are copied, as they may lie at any address in the message. */
static void answer_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const size_t elements = entry_elements(object);
    const uint32_t count = message->tensor_count == 1 ? message_flat(message, 0, WIRE_F32) : 0;
    struct error error = {0};
    float *values = malloc(elements * sizeof *values);
    enum status status = entry_check_count(object, count, &error);
    if (status == STATUS_OK && values == NULL)
        status = error_set(&error, STATUS_NO_MEMORY, "no memory for %zu values", elements);
    if (status == STATUS_OK) {
        memcpy(values, message->data[0], elements * sizeof *values);
        status = entry_write(object, message->args[VALUES_WHICH], values, &error);
    }
    free(values);
    request_answer(request, status, &error, NULL);
}

static void answer_optimizer(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct entry *first = object;
    struct dist_owner *owner = first->owned->owner;
    struct error error = {0};
    struct local *local = NULL;
    struct rpc_message reply = {0};
    enum status status = local_make(&local, owner, rpc_request_source(request), message, &error);
    if (status == STATUS_OK) {
        status = rref_grant(owner->rrefs, &dist_optimizer_class, local, request, &reply.args[0], &error);
        if (status != STATUS_OK)
            local_destroy(local);
    }
    request_answer(request, status, &error, &reply);
}

static rref_function *const parameter_functions[PARAMETER_FUNCTIONS] = {
    [PARAMETER_GET] = answer_get,
    [PARAMETER_SET] = answer_set,
    [PARAMETER_OPTIMIZER] = answer_optimizer,
};

const struct rref_class dist_parameter_class = {
    .name = "parameter",
    .destroy = parameter_destroy,
    .functions = parameter_functions,
    .function_count = PARAMETER_FUNCTIONS,
};

/* ---- METHOD_PARAMETERS ---- */

static void answer_parameters(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct error error = {0};
    struct owned *owned = NULL;
    struct rpc_message reply = {0};
    uint64_t numbers[DIST_PARAMETERS_MAX];
    uint32_t made = 0;
    enum status status = owned_use(&owned, context, rpc_request_source(request), message->args[0], &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    while (made < owned->count && status == STATUS_OK) {
        status = rref_grant(owned->owner->rrefs, &dist_parameter_class, &owned->entries[made], request,
                            &numbers[made], &error);
        made += status == STATUS_OK;
        owned->users += status == STATUS_OK;
    }
    message_add(&reply, WIRE_U64, numbers, made);
    while (status != STATUS_OK && made > 0)
        rref_revoke(owned->owner->rrefs, numbers[--made], request);
    request_answer(request, status, &error, &reply);
    owned_release(owned);
}

static const struct rpc_method methods[] = {
    {.method = METHOD_PARAMETERS, .callers = UINT8_MAX, .handler = answer_parameters},
};

/* ---- the owner ---- */

static void owner_worker_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct dist_owner *owner = context;
    (void)why, (void)text;
    for (struct local *local = owner->locals; local != NULL; local = local->next)
        local_worker_left(local, worker, STATUS_PEER_DIED);
}

enum status dist_owner_new(struct dist_owner **out, struct dist *dist, struct error *error)
{
    struct dist_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an owner of parameters");
    *owner = (struct dist_owner){.dist = dist, .rpc = dist_rpc(dist), .rrefs = dist_rrefs(dist)};
    rpc_add_methods(owner->rpc, methods, sizeof methods / sizeof methods[0], owner);
    rpc_on_left(owner->rpc, owner_worker_left, owner);
    *out = owner;
    return STATUS_OK;
}

void dist_owner_free(struct dist_owner *owner)
{
    assert(owner == NULL || (owner->owned == NULL && owner->locals == NULL));
    free(owner);
}
