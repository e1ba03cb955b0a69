"""The one kernel of :mod:`gpusnap_nvidia.program`, as PTX that the driver compiles itself.

A thread a word: ``word = (word ^ (seed + index)) * MIXER + step`` modulo 2**64.
"""

MIXER = 6364136223846793005
"""Multiplier of Knuth's MMIX generator."""

NAME = "gpusnap_mix"

# Turing is the oldest GPU that CUDA 13 compiles for; newer GPUs run the same text.
PTX = f"""
.version 6.4
.target sm_75
.address_size 64

.visible .entry {NAME}(
    .param .u64 words,
    .param .u64 seed,
    .param .u64 step,
    .param .u32 count)
{{
    .reg .pred %outside;
    .reg .u32 %thread, %block, %threads, %index, %count;
    .reg .u64 %words, %seed, %step, %offset, %address, %word, %key;

    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %index, %count;
    @%outside bra END;

    ld.param.u64 %words, [words];
    ld.param.u64 %seed, [seed];
    ld.param.u64 %step, [step];
    cvta.to.global.u64 %words, %words;
    mul.wide.u32 %offset, %index, 8;
    add.u64 %address, %words, %offset;
    cvt.u64.u32 %key, %index;
    add.u64 %key, %key, %seed;

    ld.global.u64 %word, [%address];
    xor.b64 %word, %word, %key;
    mul.lo.u64 %word, %word, {MIXER};
    add.u64 %word, %word, %step;
    st.global.u64 [%address], %word;
END:
    ret;
}}
"""
