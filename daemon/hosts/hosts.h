/* The other hosts of a job, as the leader sees them: which are there, what each brings, which are lost.
 *
 * The room: daemon/hosts lets one job run on several hosts. It starts and reaps workers here and there, and
 * carries messages between supervisors. It decides nothing about a job; that is daemon/supervise.
 *
 *     host        a machine of the job, by its number; every host runs one supervisor
 *     leader      host 0; its supervisor decides, and writes the run's files
 *     follower    any other host; its supervisor obeys the leader (follow.h)
 *     rendezvous  how this host finds its number, the keys, and the leader (rendezvous.h)
 *     link        the process that holds the ZeroMQ socket between supervisors (worker/link.h)
 *     relay       a supervisor's end of its link (relay.h)
 *     child       a worker's process, on this host or on another (child.h)
 *     join        a host asks the leader to take it; the leader admits or refuses it
 *     bring       a host that joins a running job brings observers or trainers with it
 *     depart      a host asks to leave; its workers start elsewhere first
 *
 * A host is up from its admission on. Supervisors beat twice a second. A host that is silent for
 * RELAY_SILENCE_US is lost, and its workers with it; it may come back. It has killed its workers by then
 * (follow.c), and messages of theirs that are still under way name an incarnation that is gone.
 *
 * The leader's loop calls hosts_read and hosts_check, and acts on the events that they return. Supervisor
 * process; its only thread; no lock. No call blocks but hosts_open, hosts_close, and relay.h's. */
#ifndef DAEMON_HOSTS_HOSTS_H
#define DAEMON_HOSTS_HOSTS_H

#include "daemon/hosts/child.h"
#include "daemon/hosts/relay.h"
#include "daemon/hosts/rendezvous.h"
#include "worker/job/job.h"

enum host_event_kind {
    HOST_NOTHING,
    HOSTS_READY, /* the hosts with which the job begins are here, or are not waited for any longer */
    HOST_ASKS,   /* it asks to join: hosts_admit or hosts_refuse answers */
    HOST_SPEAKS, /* a message of a worker there, or EXITED, which is about one */
    HOST_CLEARS, /* it departs: its workers start elsewhere, and then hosts_release tells it */
    HOST_LOST,   /* its workers are gone */
};

struct host_event {
    enum host_event_kind kind;
    uint16_t host;
    const char *why;                       /* HOST_LOST */
    struct control_relay head;             /* HOST_SPEAKS: of which worker */
    const struct control_message *message; /* HOST_ASKS: JOIN; HOST_SPEAKS; until the next hosts_read */
};

/* Embedded by the supervisor. Every function takes one that is all zero: the job has one host. */
struct hosts {
    struct relay relay;
    struct rendezvous *rendezvous;
    const struct job *job;
    struct host *of;               /* (hosts_count) by number; the leader's own is not used */
    bool awaited;                  /* HOSTS_READY has not come yet */
    struct monotime due, beat_due; /* when HOSTS_READY comes at the latest; when to beat next */
};

/* Starts the link, and tells the other hosts where it is. `rendezvous`: NULL: the job has one host. Blocks
 * until the hosts know, for /hosts/patience_s at most. Errors of relay_open and rendezvous_publish;
 * hosts_close follows in every case. */
enum status hosts_open(struct hosts *hosts, struct rendezvous *rendezvous, const struct job *job,
                       const char *run, struct error *error);

/* Tells the hosts that the job is over, and how, and ends the link. Waits up to 5 s for hosts that were lost
 * a moment ago, and, of a job that failed before it began, for those that have not come: they hear it too. */
void hosts_close(struct hosts *hosts, enum status outcome, const char *text);

/* The leader cannot even open its run: it tells the hosts that look for it within 5 s. Without PMI, hosts
 * that find their leader through the run's directory do not hear it. `rendezvous`: NULL: there are none. */
void hosts_decline(struct rendezvous *rendezvous, const struct job *job, const struct error *why);

/* ---- events ---- */

/* Reads a message. False: none waits. */
bool hosts_read(struct hosts *hosts, struct host_event *event);

/* Beats, and opens a link that has ended anew. True: `event` is due, and others may be. */
bool hosts_check(struct hosts *hosts, struct monotime now, struct host_event *event);

/* When to call hosts_check again. */
struct monotime hosts_due(const struct hosts *hosts);

/* This process was absent: the hosts' silence counts from now on. */
void hosts_excuse(struct hosts *hosts, struct monotime now);

/* ---- what the leader decides ---- */

void hosts_admit(struct hosts *hosts, uint16_t host, const struct control_join *join);
void hosts_refuse(struct hosts *hosts, uint16_t host, enum status status, const char *text);

/* Takes a host for lost that does not obey. False: it was not up. */
bool hosts_lose(struct hosts *hosts, uint16_t host);

/* A worker's failure is this host's fault: no more workers start there. True: the host had brought clients,
 * so there is nothing left for it to do, and hosts_release follows. */
bool hosts_doubt(struct hosts *hosts, uint16_t host, const char *why);

/* Takes away what the host has brought, and returns it. */
uint32_t hosts_take_away(struct hosts *hosts, uint16_t host);

/* Tells a host that it is out of the job. */
void hosts_release(struct hosts *hosts, uint16_t host, int exit_code, const char *text);

/* ---- what is known of a host ---- */

/* The number of hosts that have a key, the leader included. A job of one host: 1. */
uint16_t hosts_count(const struct hosts *hosts);

/* The number of hosts with which the job begins. */
uint16_t hosts_at_start(const struct hosts *hosts);

/* Whether workers can start there: it is the leader, or is up and in no doubt. */
bool hosts_can_run(const struct hosts *hosts, uint16_t host);

/* Whether HOST_CLEARS has come, and hosts_release has not been called. */
bool hosts_is_clearing(const struct hosts *hosts, uint16_t host);

/* How many clients the job has because of this host, and because of all: none for a host that cannot run
 * workers. */
uint32_t hosts_brings(const struct hosts *hosts, uint16_t host);
uint32_t hosts_all_bring(const struct hosts *hosts);

/* The name that the host gave itself, for messages. */
const char *hosts_name(const struct hosts *hosts, uint16_t host);

/* Where workers of host `from` reach the listeners of host `to`: "ADDRESS" or "tcp://ADDRESS:PORT". */
const char *hosts_address(const struct hosts *hosts, uint16_t to, uint16_t from);

#endif
