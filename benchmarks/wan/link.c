/* A long link between two network namespaces: link NEAR FAR DELAY_MS BITS_PER_S LOSS QUEUE_BYTES
 *
 * Makes a TUN device "wan" in each namespace and carries packets between the two. Each direction is a line of the
 * given rate with a drop-tail queue in front and a fixed one-way delay behind; a share LOSS of packets is dropped at
 * random, from a fixed seed. As with a network card, the devices compute checksums and cut large segments of TCP into
 * packets: the kernel hands those over uncut, the line counts, delays and loses them packet by packet. Writes "up" to
 * standard output when both devices exist, and ends with SIGTERM, telling on standard error what it carried and
 * dropped. Needs root. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a segment; segments taken at a turn; bytes before each; nanoseconds between two turns while something is on
 * its way: waking for every packet would cost more than carrying it, and half a millisecond is little on a long way. */
enum { LARGEST = 66 * 1024, BURST = 1024, FRAME = sizeof(struct virtio_net_hdr), TICK = 500 * 1000 };

/* What is on its way: in front of its bytes, in a ring. Length 0: the ring goes on at its beginning. */
struct entry { double due; int length; };

struct line {
    int from, to;
    size_t size, head, tail, used;
    unsigned char *ring;
    double free_at; /* when the last packet taken will have left the sender */
    unsigned long carried, lost, overflowed;
};

static volatile sig_atomic_t ending;
static void on_signal(int number) { (void)number; ending = 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what) { perror(what); exit(1); }

static int device_in(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int place = open(path, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET)) fail(path);
    close(place);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq wish;
    memset(&wish, 0, sizeof wish);
    wish.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    strcpy(wish.ifr_name, "wan");
    if (ioctl(device, TUNSETIFF, &wish)) fail("TUNSETIFF");
    if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) fail("TUNSETOFFLOAD");
    return device;
}

/* The parts of a segment as it comes from a device: sizes of headers and of the payload of one packet, packets. */
struct shape { int headers, step, packets; };

static struct shape shape_of(const unsigned char *bytes, int length) {
    const struct virtio_net_hdr *frame = (const void *)bytes;
    const struct iphdr *ip = (const void *)(bytes + FRAME);
    struct shape found = {0, 0, 1};
    if (frame->gso_type == VIRTIO_NET_HDR_GSO_NONE || !frame->gso_size || ip->protocol != IPPROTO_TCP) return found;
    const struct tcphdr *tcp = (const void *)(bytes + FRAME + ip->ihl * 4);
    found.headers = ip->ihl * 4 + tcp->doff * 4;
    found.step = frame->gso_size;
    found.packets = (length - FRAME - found.headers + found.step - 1) / found.step;
    return found;
}

static uint32_t sum16(const void *data, int bytes) {
    const uint16_t *words = data;
    uint32_t sum = 0;
    for (int i = 0; i < bytes / 2; i++) sum += words[i];
    return sum;
}

static uint16_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* Packets [first, behind) of a segment as a segment of their own, into `out`; returns its length. */
static int part_of(const unsigned char *bytes, int length, struct shape shape, int first, int behind, unsigned char *out) {
    int begin = first * shape.step, end = behind * shape.step, payload = length - FRAME - shape.headers;
    if (end > payload) end = payload;
    memcpy(out, bytes, FRAME + shape.headers);
    memcpy(out + FRAME + shape.headers, bytes + FRAME + shape.headers + begin, end - begin);
    struct virtio_net_hdr *frame = (void *)out;
    struct iphdr *ip = (void *)(out + FRAME);
    struct tcphdr *tcp = (void *)(out + FRAME + ip->ihl * 4);
    int tcp_bytes = shape.headers - ip->ihl * 4 + end - begin;
    if (behind - first == 1) frame->gso_type = VIRTIO_NET_HDR_GSO_NONE, frame->gso_size = 0;
    ip->tot_len = htons(shape.headers + end - begin);
    ip->id = htons(ntohs(ip->id) + first);
    ip->check = 0;
    ip->check = ~folded(sum16(ip, ip->ihl * 4));
    tcp->seq = htonl(ntohl(tcp->seq) + begin);
    if (end < payload) tcp->fin = tcp->psh = 0;
    /* The device completes the checksum: here it is that of the pseudo header (RFC 9293, 3.1). */
    tcp->check = folded(sum16(&ip->saddr, 8) + htons(IPPROTO_TCP) + htons(tcp_bytes));
    return FRAME + shape.headers + end - begin;
}

/* What an entry takes in the ring. */
static size_t span(const struct entry *entry) { return (sizeof *entry + entry->length + 15) & ~(size_t)15; }

/* Room for the largest segment in one piece; NULL when there is none. */
static struct entry *room(struct line *line) {
    size_t need = sizeof(struct entry) + LARGEST;
    if (line->head + need > line->size) {
        if (line->size - line->used < need + (line->size - line->head)) return NULL;
        ((struct entry *)(line->ring + line->head))->length = 0;
        line->used += line->size - line->head;
        line->head = 0;
    }
    return line->size - line->used < need ? NULL : (struct entry *)(line->ring + line->head);
}

static void keep(struct line *line, struct entry *entry, int length, double due) {
    entry->length = length;
    entry->due = due;
    line->head += span(entry);
    line->used += span(entry);
}

/* Take what the sender's side has to send. */
static void take(struct line *line, double rate, double delay, double loss, double queue) {
    static unsigned char segment[LARGEST];
    for (int i = 0; i < BURST; i++) {
        int length = read(line->from, segment, LARGEST);
        if (length <= 0) return;
        double t = now(), start = line->free_at > t ? line->free_at : t;
        struct shape shape = shape_of(segment, length);
        if ((start - t) * rate > queue) { line->overflowed += shape.packets; continue; }
        /* Lost packets take their time on the line as well. */
        line->free_at = start + (length - FRAME + (shape.packets - 1) * shape.headers) / rate;
        for (int first = 0, at = 0; at <= shape.packets; at++) {
            if (at < shape.packets && (loss <= 0 || drand48() >= loss)) continue;
            if (at > first) {
                struct entry *entry = room(line);
                if (!entry) { line->overflowed += at - first; first = at + 1; continue; }
                int size = length;
                if (at - first == shape.packets) memcpy(entry + 1, segment, length);
                else size = part_of(segment, length, shape, first, at, (unsigned char *)(entry + 1));
                keep(line, entry, size, line->free_at + delay);
                line->carried += at - first;
            }
            if (at < shape.packets) line->lost++;
            first = at + 1;
        }
    }
}

/* Hand over what is due; returns when the next packet will be, or a time far away. */
static double deliver(struct line *line) {
    while (line->used) {
        struct entry *entry = (struct entry *)(line->ring + line->tail);
        if (!entry->length) {
            line->used -= line->size - line->tail;
            line->tail = 0;
            continue;
        }
        if (entry->due > now()) return entry->due;
        if (write(line->to, entry + 1, entry->length) < 0) {
            if (errno == EAGAIN) return now() + 0.0002;
            line->overflowed++;
        }
        line->tail += span(entry);
        line->used -= span(entry);
    }
    return 1e18;
}

int main(int count, char **words) {
    if (count != 7) { fprintf(stderr, "link NEAR FAR DELAY_MS BITS_PER_S LOSS QUEUE_BYTES\n"); return 2; }
    double delay = atof(words[3]) / 1e3, rate = atof(words[4]) / 8, loss = atof(words[5]), queue = atof(words[6]);
    struct line lines[2];
    memset(lines, 0, sizeof lines);
    int near = device_in(words[1]), far = device_in(words[2]);
    for (int i = 0; i < 2; i++) {
        struct line *line = &lines[i];
        line->from = i ? far : near;
        line->to = i ? near : far;
        line->size = ((size_t)(2 * (rate * delay + queue)) + 4 * LARGEST) & ~(size_t)15; /* small packets too; memory is used when it is touched */
        line->ring = malloc(line->size);
        if (!line->ring) fail("memory");
    }
    srand48(1);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    printf("up\n");
    fflush(stdout);
    const struct timespec tick = {0, TICK}, rest = {0, 100 * 1000 * 1000}; /* a signal may come between the test and the wait */
    struct pollfd ready[2] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    while (!ending) {
        double next = 1e18;
        for (int i = 0; i < 2; i++) {
            take(&lines[i], rate, delay, loss, queue);
            double due = deliver(&lines[i]);
            if (due < next) next = due;
        }
        if (next < 1e18) {
            nanosleep(&tick, NULL);
        } else {
            ppoll(ready, 2, &rest, NULL);
        }
    }
    for (int i = 0; i < 2; i++)
        fprintf(stderr, "%s: carried %lu, lost %lu, overflowed %lu packets\n", i ? "to near" : "to far", lines[i].carried, lines[i].lost, lines[i].overflowed);
    return 0;
}
