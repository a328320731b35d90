/* Makes and reads the keys of a job's hosts: a folder that `coalesced keygen` makes.
 *
 *     hosts          the public keys of all hosts: a line "NUMBER KEY" for each, KEY in 64 hexadecimal digits
 *     host-N.secret  the secret key of host N: a line; mode 0600
 *
 * Every host needs `hosts` and its own secret key. One thread; blocks on files. */
#ifndef DAEMON_HOSTS_KEY_FILES_H
#define DAEMON_HOSTS_KEY_FILES_H

#include "kernels/base/status.h"
#include "worker/net/host_keys.h"

/* Makes the folder (mode 0700) with keys for `count` hosts. STATUS_BUSY: it has keys already, which stay.
 * STATUS_IO, STATUS_PERMISSION. */
enum status key_files_make(const char *folder, uint16_t count, struct error *error);

/* Makes a file with this text and mode, and syncs it. STATUS_BUSY: it is there already; STATUS_IO,
 * STATUS_PERMISSION. */
enum status key_files_write(const char *path, const char *text, unsigned mode, struct error *error);

/* Reads the digits of a key, up to the end of the text or line. False: they are no key. */
bool key_files_parse(uint8_t key[HOST_KEY_BYTES], const char *hex);

/* The host whose secret key is the only one in the folder. STATUS_INVALID: there are several, or none. */
enum status key_files_own(uint16_t *host, const char *folder, struct error *error);

/* Reads the public keys, and host `host`'s secret key. keys->count is the number of hosts in the file.
 * STATUS_INVALID names the file and line that is wrong, or a secret key that other users can read, or that
 * does not belong to the public one; STATUS_NOT_FOUND, STATUS_IO, STATUS_PERMISSION. */
enum status key_files_read(struct host_keys *keys, const char *folder, uint16_t host, struct error *error);

#endif
