/* Packets between supervisor and worker. Both sides, one thread each; no lock, no allocation. */
#include "worker/control.h"

#include "kernels/base/plugin_call.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const size_t least_bytes[CONTROL_KINDS] = {
    [CONTROL_START] = sizeof(struct control_start),
    [CONTROL_DIED] = sizeof(struct control_died),
    [CONTROL_LOGGED] = sizeof(struct control_logged),
    [CONTROL_EPISODE] = offsetof(struct control_episode, metrics.of),
    [CONTROL_UPDATE] = sizeof(struct control_update),
    [CONTROL_EPOCH] = sizeof(struct control_epoch),
    [CONTROL_STATUS] = sizeof(struct control_status),
    [CONTROL_FINISHED] = sizeof(struct control_finished),
    [CONTROL_FAILED] = sizeof(struct error),
    [CONTROL_FAR] = sizeof(struct control_far),
    [CONTROL_PLACED] = sizeof(int16_t),
    [CONTROL_LINK] = sizeof(struct control_link),
    [CONTROL_RELAY] = sizeof(struct control_relay),
    [CONTROL_JOIN] = sizeof(struct control_join),
    [CONTROL_ADMIT] = sizeof(struct control_admit),
    [CONTROL_REFUSE] = sizeof(struct error),
    [CONTROL_EXITED] = sizeof(struct control_exited),
    [CONTROL_OVER] = sizeof(struct control_over),
    [CONTROL_PROFILE] = offsetof(struct control_profile, spans),
    [CONTROL_SAVED] = sizeof(struct control_saved),
};

/* ---- figures ---- */

#define OF(algorithm) (1u << JOB_ALGORITHM_##algorithm)
#define AT(member) offsetof(struct control_figures, member)

enum {
    ON_POLICY = OF(PPO) | OF(A2C),
    OFF_POLICY = OF(DQN) | OF(SAC) | OF(TD3),
    FLOATS = OF(SAC) | OF(TD3),
    EVERY = ON_POLICY | OFF_POLICY,
    LOG = CONTROL_IN_LOG,
    EVENTS = CONTROL_IN_EVENTS,
    METRICS = CONTROL_IN_METRICS,
};

/* clang-format off */
const struct control_figure control_figure_list[] = {
    {"total_timesteps", "time", LOG, EVERY, true, AT(total_timesteps), NULL},
    {"timesteps", "time", METRICS, EVERY, true, AT(total_timesteps), "Environment steps, also of earlier processes."},
    {"n_updates", "train", LOG | EVENTS, EVERY, true, AT(n_updates), NULL},
    {"ep_rew_mean", "rollout", LOG | EVENTS, EVERY, false, AT(ep_rew_mean), NULL},
    {"ep_len_mean", "rollout", LOG | EVENTS, EVERY, false, AT(ep_len_mean), NULL},
    {"policy_gradient_loss", "train", LOG | EVENTS | METRICS, OF(PPO), false, AT(policy_loss), "The policy's part of the loss."},
    {"policy_loss", "train", LOG | EVENTS | METRICS, OF(A2C), false, AT(policy_loss), "The policy's part of the loss."},
    {"value_loss", "train", LOG | EVENTS | METRICS, ON_POLICY, false, AT(value_loss), "The values' part of the loss."},
    {"entropy_loss", "train", LOG | EVENTS | METRICS, ON_POLICY, false, AT(entropy_loss), "The entropy's part of the loss."},
    {"loss", "train", EVENTS, OF(PPO) | OF(DQN), false, AT(loss), NULL},
    {"approx_kl", "train", LOG | EVENTS | METRICS, OF(PPO), false, AT(approx_kl), "The divergence from the policy that acted."},
    {"clip_fraction", "train", LOG | EVENTS, OF(PPO), false, AT(clip_fraction), NULL},
    {"explained_variance", "train", LOG | EVENTS | METRICS, ON_POLICY, false, AT(explained_variance), "How well the values explain the returns."},
    {"actor_loss", "train", LOG | EVENTS | METRICS, FLOATS, false, AT(actor_loss), "The policy's loss."},
    {"critic_loss", "train", LOG | EVENTS | METRICS, FLOATS, false, AT(critic_loss), "The values' loss."},
    {"ent_coef", "train", LOG | EVENTS | METRICS, OF(SAC), false, AT(ent_coef), "The weight of the entropy."},
    {"ent_coef_loss", "train", LOG | EVENTS, OF(SAC), false, AT(ent_coef_loss), NULL},
    {"exploration_rate", "rollout", LOG | EVENTS | METRICS, OF(DQN), false, AT(exploration_rate), "The probability of a random action."},
    {"learning_rate", "train", LOG | EVENTS | METRICS, EVERY, false, AT(learning_rate), "The learning rate."},
    {"clip_range", "train", LOG | EVENTS, OF(PPO), false, AT(clip_range), NULL},
    {"std", "train", LOG | EVENTS, ON_POLICY, false, AT(std), NULL},
};
/* clang-format on */
const size_t control_figure_count = sizeof control_figure_list / sizeof control_figure_list[0];

bool control_figure_is_shown(const struct control_figure *figure, const struct control_figures *figures,
                             unsigned where)
{
    return (figure->where & where) != 0 && (figure->algorithms >> figures->algorithm & 1u) != 0;
}

double control_figure_value(const struct control_figure *figure, const struct control_figures *figures)
{
    const char *at = (const char *)figures + figure->offset;
    double value;
    uint64_t count;
    if (figure->is_count) {
        memcpy(&count, at, sizeof count);
        return (double)count;
    }
    memcpy(&value, at, sizeof value);
    return value;
}

/* What worker/net/PROTOCOL.md tells writers of workers in other languages. */
_Static_assert(CONTROL_EXIT == 7 && CONTROL_READY == 9 && CONTROL_BEAT == 10 && CONTROL_FAILED == 16 &&
                   CONTROL_FAR == 17,
               "the kinds of PROTOCOL.md");
_Static_assert(
    offsetof(struct control_start, role) == 2 && offsetof(struct control_start, incarnation) == 4 &&
        offsetof(struct control_start, generation) == 8 && offsetof(struct control_start, added) == 12 &&
        offsetof(struct control_start, secret) == 16 && offsetof(struct control_start, address) == 48 &&
        offsetof(struct control_start, run_dir) == 208 && offsetof(struct control_start, resume) == 4304 &&
        offsetof(struct control_start, keys) == 8400 &&
        offsetof(struct control_start, far_address) == 10484 && sizeof(struct control_start) == 10548,
    "START of PROTOCOL.md");
_Static_assert(offsetof(struct control_died, incarnation) == 4 && offsetof(struct control_died, text) == 8,
               "DIED of PROTOCOL.md");
_Static_assert(offsetof(struct host_keys, secret) == 4 && offsetof(struct host_keys, public_of_host) == 36 &&
                   sizeof(struct host_keys) == 2084 && offsetof(struct control_far, address) == 4 &&
                   sizeof(struct control_far) == 68,
               "keys and FAR of PROTOCOL.md");
_Static_assert(offsetof(struct control_beat, work) == 16 && offsetof(struct control_beat, queue) == 64 &&
                   offsetof(struct control_beat, evaluation) == 72 && sizeof(struct control_beat) == 80,
               "BEAT of PROTOCOL.md");
_Static_assert(sizeof(struct error) == 484, "FAILED of PROTOCOL.md");
_Static_assert(offsetof(struct plugin_call, kind) == 8 && offsetof(struct plugin_call, last) == 16 &&
                   PLUGIN_CALL_OPEN == 2 && PLUGIN_CALL_CLOSE == 8,
               "the note of PROTOCOL.md");

const uint32_t control_wait_limits_us[CONTROL_WAIT_BUCKETS - 1] = {
    10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000};

/* The kernel may lack memory for a message, for a moment. */
static bool control_lacks_memory(int errnum)
{
    return errnum == ENOMEM || errnum == ENOBUFS;
}

/* Whether to try a send again. Waits a millisecond where the kernel lacked memory, at most 100 times. */
static bool control_send_again(int errnum, unsigned *tries)
{
    enum { TRIES_MAX = 100 };
    if (control_lacks_memory(errnum) && ++*tries <= TRIES_MAX) {
        poll(NULL, 0, 1);
        return true;
    }
    return errnum == EINTR;
}

enum status control_send(int fd, enum control_kind kind, const void *body, size_t body_bytes)
{
    uint32_t number = kind;
    struct iovec parts[2] = {
        {.iov_base = &number, .iov_len = sizeof number},
        {.iov_base = (void *)(uintptr_t)body, .iov_len = body_bytes},
    };
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = body_bytes > 0 ? 2 : 1};
    ssize_t sent;
    unsigned tries = 0;
    do
        sent = sendmsg(fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && control_send_again(errno, &tries));
    if (sent >= 0)
        return STATUS_OK;
    return errno == EAGAIN || control_lacks_memory(errno) ? STATUS_BUSY : STATUS_PEER_DIED;
}

static bool control_profile_is_whole(const struct control_message *message)
{
    const struct control_profile *profile = &message->body.profile;
    if (profile->count > CONTROL_SPANS_MAX || profile->first > PROFILE_SPANS_MAX - profile->count ||
        message->body_bytes != control_profile_bytes(profile))
        return false;
    for (uint32_t i = 0; i < profile->count; i++)
        if (profile->spans[i].kind >= PROFILE_KINDS)
            return false;
    return true;
}

/* Whether the message, which has its least bytes, has all that it says, and names that end. */
static bool control_is_whole(const struct control_message *message)
{
    const struct control_metrics *metrics = &message->body.episode.metrics;
    if (message->kind == CONTROL_PROFILE)
        return control_profile_is_whole(message);
    if (message->kind != CONTROL_EPISODE)
        return true;
    if (metrics->count > CONTROL_METRICS_MAX ||
        message->body_bytes != control_episode_bytes(&message->body.episode))
        return false;
    for (uint32_t i = 0; i < metrics->count; i++)
        if (memchr(metrics->of[i].name, '\0', sizeof metrics->of[i].name) == NULL)
            return false;
    return true;
}

enum status control_check(const struct control_message *message)
{
    if (message->kind == 0 || message->kind >= CONTROL_KINDS)
        return STATUS_INVALID;
    return message->body_bytes < least_bytes[message->kind] || !control_is_whole(message) ? STATUS_INVALID
                                                                                          : STATUS_OK;
}

enum status control_receive(int fd, bool wait, struct control_message *message)
{
    struct iovec parts[2] = {
        {.iov_base = &message->kind, .iov_len = sizeof message->kind},
        {.iov_base = &message->body, .iov_len = sizeof message->body},
    };
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t received = recvmsg(fd, &packet, wait ? 0 : MSG_DONTWAIT);
    if (received < 0)
        return errno == EAGAIN || errno == EINTR || control_lacks_memory(errno) ? STATUS_AGAIN
                                                                                : STATUS_PEER_DIED;
    if (received == 0)
        return STATUS_PEER_DIED;
    if ((size_t)received < sizeof message->kind)
        message->kind = 0;
    if ((size_t)received < sizeof message->kind || (packet.msg_flags & MSG_TRUNC))
        return STATUS_INVALID;
    message->body_bytes = (size_t)received - sizeof message->kind;
    return control_check(message);
}
