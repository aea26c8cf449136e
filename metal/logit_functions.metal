// Functions of the kernels that read logits as the head wrote them.

// What a number of the head comes to: softcapped unless `cap` is 0, over the temperature.
METAL_FUNC float logit_of(float raw, float cap, float temperature) {
  float capped = cap == 0.0f ? raw : metal::precise::tanh(raw / cap) * cap;
  return capped / temperature;
}
