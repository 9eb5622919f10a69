import { defineConfig } from 'vitest/config';

// The tests are about plain objects: they need no browser.
export default defineConfig({ test: { include: ['src/**/*.test.ts'] } });
