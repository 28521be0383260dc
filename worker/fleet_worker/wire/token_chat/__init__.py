"""Chats whose prompt comes as tokens: `/v1/chat/completions/tokens`, and `tokens` of a chat.

For clients that stitch the turns of a conversation together by themselves, so that the model reads
just the tokens that it sampled. Messages go along for the record; they are not read.
"""
